"""The message format that a template expects, found by rendering small chats.

Each role is tried: a template may take the parts of a user's content and only text from others.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

from openai_frontend.errors import InvalidRequest
from openai_frontend.prompting import media_placeholder
from openai_frontend.prompting.call_ids import with_short_ids

Message = Mapping[str, Any]

# Forms of content: a text, a list of which only the first part is written, or a list
Form = Literal["text", "part", "parts"]


@dataclass(frozen=True, slots=True)
class MessageShape:
    """The message format that a template expects."""

    forms: Mapping[str, Form]  # role -> the form of its content; text if it is not listed
    empty_content: Any  # of an assistant
    null_content: bool  # of an assistant that only calls tools; otherwise `empty_content`
    arguments_as_mapping: bool
    developer: bool  # otherwise a developer becomes a system message
    short_ids: bool  # of calls: nine letters and digits
    leading_system: bool = False  # only one system message, which comes first
    # Kind of media -> placeholder of an item. The template itself writes those of `media_parts`
    # in messages of the role, so it needs the parts of the content.
    media: Mapping[str, str] = field(default_factory=dict)
    media_parts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    # Roles whose messages need no change if they are text
    _speakers: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        spoken = {role for role, form in self.forms.items() if form == "text"} - {"developer"}
        object.__setattr__(self, "_speakers", frozenset(spoken))

    def messages(
        self, messages: Sequence[Message], warn: Callable[[str], None]
    ) -> list[dict[str, Any]]:
        """`warn` gets the path of arguments that are not a JSON object."""
        if self.short_ids:
            messages = with_short_ids(messages)
        shaped: list[dict[str, Any]] = []
        for i, message in enumerate(messages):
            content = message.get("content")
            if type(content) is str and len(message) == 2 and message["role"] in self._speakers:
                shaped.append({"role": message["role"], "content": content})  # as most are
            else:
                shaped.append(self._message(message, i, warn))
        return shaped

    def _message(self, message: Message, index: int, warn: Callable[[str], None]) -> dict[str, Any]:
        content, role = message.get("content"), message.get("role")
        shaped = {key: value for key, value in message.items() if key != "content"}
        if role == "developer" and not self.developer:
            shaped["role"] = "system"
        if content is None:
            null = self.null_content and shaped.get("tool_calls")
            shaped["content"] = None if null else self.empty_content
        elif content == []:
            shaped["content"] = self.empty_content
        else:
            role = str(shaped.get("role"))
            shaped["content"] = self._content(content, role, f"messages[{index}].content")
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

    def _content(self, content: Any, role: str, where: str) -> Any:
        form = self.forms.get(role, "text")
        if isinstance(content, str):
            return content if form == "text" else [_text_part(content)]
        written = self.media_parts.get(role, frozenset())
        if form == "parts" or any(part["type"] in written for part in content):
            return [self._part(part, written) for part in content]
        text = "\n".join(_text(part, f"{where}[{i}]", self.media) for i, part in enumerate(content))
        return text if form == "text" else [_text_part(text)]

    def _part(self, part: Mapping[str, Any], written: frozenset[str]) -> Mapping[str, Any]:
        """The part; a text if the template would not write it."""
        kind = part["type"]
        if kind == "refusal":
            return _text_part(part[kind])
        return _text_part(self.media[kind]) if kind in self.media.keys() - written else part


def _text_part(text: str) -> Mapping[str, Any]:
    return {"type": "text", "text": text}


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


class Attempt(Protocol):
    """Renders a small chat; None if the template rejects it."""

    def __call__(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None, /
    ) -> str | None: ...


Chat = Callable[[Any], list[Message]]  # a chat with this content in one of its messages

_PROBE = "probe-7f3a"
_PRINTED = re.compile("[\"']type[\"']")  # a template that prints the parts as they are
_SHORT_ID, _LONG_ID = "callProb1", "call_7f3aprobe0123456789abcd"
_TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "", "parameters": {"type": "object"}},
}


def detect(attempt: Attempt, *, developer: bool) -> MessageShape:
    """`developer`: whether the template has the role."""
    user = _chat(said=partial(_said, "user"))
    forms: dict[str, Form] = {"user": _form(attempt, user) or "text"}
    question = _said("user", _in_form("?", forms["user"]))
    chats: dict[str, Chat] = {
        "system": _chat(said=partial(_said, "system"), after=[question]),
        "assistant": _chat(question, said=partial(_said, "assistant"), after=[question]),
    }
    if developer:
        chats["developer"] = _chat(said=partial(_said, "developer"), after=[question])
    for role, chat in chats.items():
        forms[role] = _form(attempt, chat) or forms["user"]
    empty = "" if forms["assistant"] == "text" else _empty_parts(attempt, chats["assistant"])
    with_null = attempt([question, _probe_call(None, "{}")])
    null = with_null is not None and "None" not in with_null
    no_text = None if null else empty
    with_mapping = attempt([question, _probe_call(no_text, {_PROBE: 1})])
    mapping = with_mapping is not None and f"'{_PROBE}'" not in with_mapping
    call = _probe_call(no_text, {} if mapping else "{}")
    chats["tool"] = _chat(question, call, said=_result)
    forms["tool"] = _form(attempt, chats["tool"]) or forms["user"]
    result = _result(_in_form("1", forms["tool"]))
    media, media_parts = _media(attempt, {"user": user, **chats})
    return MessageShape(
        forms=forms,
        empty_content=empty,
        null_content=null,
        arguments_as_mapping=mapping,
        developer=developer,
        short_ids=_needs_short_ids(attempt, [question, call, result]),
        leading_system=_needs_leading_system(attempt, forms, question),
        media=media,
        media_parts=media_parts,
    )


def _chat(*before: Message, said: Callable[[Any], Message], after: Sequence[Message] = ()) -> Chat:
    return lambda content: [*before, said(content), *after]


def _rendered(attempt: Attempt, chat: Chat, content: Any) -> str | None:
    return attempt(chat(content))


def _form(attempt: Attempt, chat: Chat) -> Form | None:
    """The form of a role's content; None if the template writes none of them."""
    if _PROBE in (attempt(chat(_PROBE)) or ""):
        return "text"
    as_parts = attempt(chat([_text_part(_PROBE)])) or ""
    if _PROBE not in as_parts or _PRINTED.search(as_parts):
        return None
    as_second = attempt(chat([_text_part("?"), _text_part(_PROBE)])) or ""
    return "parts" if _PROBE in as_second else "part"


def _in_form(text: str, form: Form) -> Any:
    return text if form == "text" else [_text_part(text)]


def _empty_parts(attempt: Attempt, chat: Chat) -> Any:
    """Some templates read the first part without looking whether there is one."""
    return [] if attempt(chat([])) is not None else [_text_part("")]


def _media(
    attempt: Attempt, chats: Mapping[str, Chat]
) -> tuple[Mapping[str, str], Mapping[str, frozenset[str]]]:
    """The placeholders of each kind of media, and the kinds that each role's template writes."""
    written: dict[str, dict[str, str]] = {}
    for role, chat in chats.items():
        texts = {
            kind: media_placeholder.probe(kind, partial(_rendered, attempt, chat))
            for kind in media_placeholder.KINDS
            if role == "user" or written["user"].get(kind)
        }
        written[role] = {kind: text for kind, text in texts.items() if text}
    return written["user"], {role: frozenset(texts) for role, texts in written.items()}


def _needs_short_ids(attempt: Attempt, chat: Sequence[Message]) -> bool:
    """Whether the template rejects longer ids of calls, or cuts them."""
    for tools in (None, [_TOOL]):
        short = attempt(_with_ids(chat, _SHORT_ID), tools)
        long = attempt(_with_ids(chat, _LONG_ID), tools)
        if short is not None and (long is None or long.count(_LONG_ID) < short.count(_SHORT_ID)):
            return True
    return False


def _needs_leading_system(attempt: Attempt, forms: Mapping[str, Form], question: Message) -> bool:
    """Whether the template writes a system message only at the beginning."""
    system = _said("system", _in_form(_PROBE, forms["system"]))
    answer = _said("assistant", _in_form("!", forms["assistant"]))
    later = attempt([question, answer, system, question])
    return _PROBE not in (later or "") and _PROBE in (attempt([system, question]) or "")


def _with_ids(chat: Sequence[Message], id: str) -> list[Message]:
    question, call, result = chat
    calls = [{**each, "id": id} for each in call["tool_calls"]]
    return [question, {**call, "tool_calls": calls}, {**result, "tool_call_id": id}]


def _said(role: str, content: Any) -> Message:
    return {"role": role, "content": content}


def _result(content: Any) -> Message:
    return {"role": "tool", "tool_call_id": _SHORT_ID, "name": "f", "content": content}


def _probe_call(content: Any, arguments: Any) -> Message:
    function = {"name": "f", "arguments": arguments}
    call = {"id": _SHORT_ID, "type": "function", "function": function}
    return {"role": "assistant", "content": content, "tool_calls": [call]}
