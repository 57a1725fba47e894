"""Renders messages with a model's own template, in the form that the template expects.

OpenAI's messages allow several forms: content as text or as a list of parts, arguments as text, a
developer role. A template supports one of them, which is detected when it is loaded.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from jinja2 import TemplateError, TemplateSyntaxError

import chat_templates
from openai_frontend.errors import InvalidRequest, ModelUnavailable
from openai_frontend.prompting import template_environment
from openai_frontend.prompting.continuation import cut_at_mark, mark_last_message
from openai_frontend.prompting.leading_system import with_leading_system
from openai_frontend.prompting.message_shape import Message, detect

logger = logging.getLogger(__name__)

# Exceptions of rendering a template; its own raise_exception is a TemplateError
_TEMPLATE_FAILURES = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    AssertionError,  # Jinja's filter `truncate`
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
    """Arguments of a template in addition to the messages."""

    tools: Sequence[Mapping[str, Any]] | None
    documents: Sequence[Mapping[str, Any]] | None
    add_generation_prompt: bool  # default: true
    continue_final_message: bool  # leave the last message open; default: false
    template_kwargs: Mapping[str, Any] | None  # the template's own variables
    # Move system messages to the beginning if the template needs that; default: the template
    # refuses them
    lift_system: bool


class ChatTemplate:
    """A template and the message format that it expects."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._source = source
        self._special_tokens = dict(special_tokens)
        self._names = _names(source)
        self._shape = detect(self._attempt, developer="developer" in source)
        self._warned = False
        self._accepted: dict[tuple[str, str], bool] = {}

    def knows(self, name: str) -> bool:
        """Whether the template uses this variable."""
        return name in self._names

    def media(self, kind: str) -> str:
        """The template's placeholder for an image or audio; "" if it has none."""
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
            self.render([{"role": "user", "content": "?"}], template_kwargs=variables)
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

    def render(  # noqa: PLR0913  the arguments of every template
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        lift_system: bool = False,
    ) -> str:
        """The prompt's text. If the template refuses the messages, the request is invalid."""
        variables = dict(template_kwargs or {})
        if variables:
            self._refuse_reserved(variables)
        if documents and not self.knows("documents"):
            raise _unsupported("documents")
        if lift_system and self._shape.leading_system:
            messages = with_leading_system(messages)
        shaped = self._shape.messages(messages, self._warn_of_arguments)
        opened = shaped if not continue_final_message else mark_last_message(shaped)
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
        return cut_at_mark(text, shaped[-1]) if continue_final_message else text

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

    def _attempt(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> str | None:
        """The text of a small chat; None if the template rejects it."""
        try:
            return self._render(messages, tools=tools, documents=None, add_generation_prompt=True)
        except _TEMPLATE_FAILURES:
            return None

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
