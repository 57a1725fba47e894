"""Renders messages with a model's own template, in the form that the template expects.

OpenAI's messages allow several forms: content as text or as a list of parts, arguments as text, a
developer role. A template supports one of them, which is detected when it is loaded.
"""

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

from jinja2 import TemplateError, TemplateSyntaxError

import chat_templates
from openai_frontend.errors import InvalidRequest, ModelUnavailable
from openai_frontend.prompting import media_placeholder, template_environment
from openai_frontend.prompting.prefill import cut_at_prefill, open_prefill

logger = logging.getLogger(__name__)

Message = Mapping[str, Any]

# What rendering a template may raise; its own raise_exception is a TemplateError
_TEMPLATE_FAILURES = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)

# Variables that the gateway sets and requests may not override
_RESERVED = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "conversations",
        "chat_template",
        "tokenize",
        "add_generation_prompt",
        "continue_final_message",
        "return_assistant_tokens_mask",
        "self",  # Jinja's
        "raise_exception",  # functions that templates call
        "strftime_now",
    }
)


def read(name_or_path: str) -> str:
    """A built-in template by name, otherwise the text of a file."""
    try:
        return chat_templates.read(name_or_path)
    except KeyError:
        return _read_file(Path(name_or_path))


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelUnavailable(error.strerror or "reading it failed") from error
    except ValueError as error:
        raise ModelUnavailable("it is not UTF-8 text") from error


class TemplateArguments(TypedDict, total=False):
    """What a template gets in addition to the messages."""

    tools: Sequence[Mapping[str, Any]] | None
    documents: Sequence[Mapping[str, Any]] | None
    add_generation_prompt: bool  # default: true
    continue_final_message: bool  # leave the last message open; default: false
    template_kwargs: Mapping[str, Any] | None  # the template's own variables


class ChatTemplate:
    """A template and the message format that it expects."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._source = source
        self._special_tokens = dict(special_tokens)
        self._names = _names(source)
        self._shape = _detect_shape(source, self._render)
        self._warned = False
        self._accepted: dict[tuple[str, str], bool] = {}

    def knows(self, name: str) -> bool:
        """Whether the template uses this variable."""
        return name in self._names

    def media(self, kind: str) -> str:
        """What the template writes for an image or audio; "" if nothing."""
        return self._shape.media.get(kind, "")

    def write_media_as(self, kind: str, text: str) -> None:
        """Write this for an image or audio, because the template itself writes nothing."""
        self._shape = replace(self._shape, media={**self._shape.media, kind: text})

    def accepts(self, name: str, value: str) -> bool:
        """Whether a small chat renders with this value of a variable, if it renders without any."""
        tried = self._accepted.get((name, value))
        if tried is None:
            tried = self._renders(**{name: value}) or not self._renders()
            self._accepted[name, value] = tried
        return tried

    def _renders(self, **variables: str) -> bool:
        try:
            self.render([_QUESTION], template_kwargs=variables)
        except InvalidRequest:
            return False
        return True

    def with_parsed_arguments(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Messages as `render` takes them, with the arguments of calls parsed if the template gets
        them so. What the JSON text escapes is then visible.
        """
        if not self._shape.arguments_as_mapping:
            return messages
        return [
            {**message, "tool_calls": self._shape.calls(message, i, self._warn_of_arguments)}
            if message.get("tool_calls")
            else message
            for i, message in enumerate(messages)
        ]

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. If the template refuses the messages, the request is invalid."""
        variables = dict(template_kwargs or {})
        self._refuse_reserved(variables)
        if documents and not self.knows("documents"):
            raise _unsupported("documents")
        shaped = [
            self._shape.message(message, i, self._warn_of_arguments)
            for i, message in enumerate(messages)
        ]
        opened = shaped if not continue_final_message else open_prefill(shaped)
        variables.update(
            tools=tools or None,
            documents=documents or None,
            add_generation_prompt=add_generation_prompt,
        )
        try:
            text = self._render(opened, **variables)
        except _TEMPLATE_FAILURES as error:
            message = f"The model's chat template rejected the messages: {error}"
            refusal = InvalidRequest(message, param="messages")
            refusal.foreign = True  # the message may contain internal objects
            raise refusal from error
        return cut_at_prefill(text, shaped[-1]) if continue_final_message else text

    def _warn_of_arguments(self, where: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s is not a JSON object; the template gets {} (logged once per template)",
                where,
            )

    def _refuse_reserved(self, variables: Mapping[str, Any]) -> None:
        reserved = sorted(variables.keys() & (_RESERVED | self._special_tokens.keys()))
        if reserved:
            raise InvalidRequest(
                f"'{reserved[0]}' is set by the gateway. Remove it.", param="chat_template_kwargs"
            )

    def _render(self, messages: Sequence[Message], **variables: Any) -> str:
        return template_environment.render(
            self._source, {**self._special_tokens, **variables, "messages": messages}
        )


def _names(source: str) -> frozenset[str]:
    try:
        return template_environment.variables_of(source)
    except TemplateSyntaxError as error:  # no chat can render
        message = f"line {error.lineno} of the chat template: {error.message}"
        raise ModelUnavailable(message) from error


def _unsupported(field: str) -> InvalidRequest:
    message = f"Unsupported parameter: '{field}' is not supported with this model."
    return InvalidRequest(message, param=field, code="unsupported_parameter")


@dataclass(frozen=True, slots=True)
class _Shape:
    """The message format that a template expects."""

    content_as_parts: bool
    null_content: bool  # content of an assistant that only calls tools; otherwise an empty text
    arguments_as_mapping: bool
    developer: bool  # otherwise a developer becomes a system message
    # Kind of media -> what stands for an item. The template itself writes those of `media_parts`,
    # so it needs the parts of the content.
    media: Mapping[str, str] = field(default_factory=dict)
    media_parts: Collection[str] = ()

    def message(self, message: Message, index: int, warn: Callable[[str], None]) -> dict[str, Any]:
        """`warn` gets the path of arguments that are not a JSON object."""
        shaped = {key: value for key, value in message.items() if key != "content"}
        if shaped.get("role") == "developer" and not self.developer:
            shaped["role"] = "system"
        content = message.get("content")
        if content is not None:
            shaped["content"] = self._content(content, f"messages[{index}].content")
        else:
            shaped["content"] = None if self.null_content and shaped.get("tool_calls") else ""
        if shaped.get("tool_calls"):
            shaped["tool_calls"] = self.calls(message, index, warn)
        return shaped

    def calls(
        self, message: Message, index: int, warn: Callable[[str], None]
    ) -> list[dict[str, Any]]:
        """The calls of a message in the format of the template."""
        where = f"messages[{index}].tool_calls"
        return [
            self._call(call, f"{where}[{i}].function.arguments", warn)
            for i, call in enumerate(message["tool_calls"])
        ]

    def _call(
        self, call: Mapping[str, Any], where: str, warn: Callable[[str], None]
    ) -> dict[str, Any]:
        """The call with arguments parsed or as text. Templates print parsed ones as JSON.

        The model may have written invalid or truncated JSON. Failing would break every later turn
        of the conversation too.
        """
        function = dict(call.get("function") or {})
        given = function.get("arguments") or "{}"
        parsed = _mapping(given)
        if parsed is None:
            warn(where)
            given = parsed = {}
        if self.arguments_as_mapping:
            function["arguments"] = parsed
        else:
            function["arguments"] = given if isinstance(given, str) else json.dumps(parsed)
        return {**call, "function": function}

    def _content(self, content: Any, where: str) -> Any:
        if isinstance(content, str):
            return [{"type": "text", "text": content}] if self.content_as_parts else content
        if self.content_as_parts or any(part["type"] in self.media_parts for part in content):
            return self._parts(content)
        return "\n".join(_text(part, f"{where}[{i}]", self.media) for i, part in enumerate(content))

    def _parts(self, content: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The parts; those that the template would not write are texts."""
        return [
            {"type": "text", "text": self.media[kind]}
            if (kind := part["type"]) in self.media and kind not in self.media_parts
            else part
            for part in content
        ]


def _text(part: Mapping[str, Any], where: str, media: Mapping[str, str]) -> str:
    """The text of a content part; `text` and `refusal` parts have it under their own name."""
    kind = part["type"]
    if kind in media:
        return media[kind]
    text = part.get(kind) if kind in ("text", "refusal") else None
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}: this model supports only text parts.", param=where)
    return text


def _mapping(arguments: str | dict[str, Any]) -> dict[str, Any] | None:
    """Arguments as an object; None if they are not one."""
    if isinstance(arguments, dict):
        return arguments
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


_PROBE = "probe-7f3a"
_QUESTION = {"role": "user", "content": _PROBE}


def _detect_shape(source: str, render: Callable[..., str]) -> _Shape:
    """Renders small chats and inspects the results."""

    def attempt(*messages: Message) -> str | None:
        try:
            return render(list(messages), tools=None, documents=None, add_generation_prompt=True)
        except _TEMPLATE_FAILURES:
            return None

    as_text = attempt(_QUESTION) or ""
    as_parts = attempt({"role": "user", "content": [{"type": "text", "text": _PROBE}]}) or ""
    parts = _PROBE not in as_text and _PROBE in as_parts
    asked = {"role": "user", "content": [{"type": "text", "text": "?"}] if parts else "?"}
    with_null = attempt(asked, _probe_call(None, "{}"))
    null = with_null is not None and "None" not in with_null
    with_mapping = attempt(asked, _probe_call(None if null else "", {_PROBE: 1}))
    written = {kind: media_placeholder.probe(kind, attempt) for kind in media_placeholder.KINDS}
    media = {kind: text for kind, text in written.items() if text}
    return _Shape(
        content_as_parts=parts,
        null_content=null,
        arguments_as_mapping=with_mapping is not None and f"'{_PROBE}'" not in with_mapping,
        developer="developer" in source,
        media=media,
        media_parts=frozenset(media),
    )


def _probe_call(content: str | None, arguments: Any) -> Message:
    call = {
        "id": "call00001",
        "type": "function",
        "function": {"name": "f", "arguments": arguments},
    }
    return {"role": "assistant", "content": content, "tool_calls": [call]}
