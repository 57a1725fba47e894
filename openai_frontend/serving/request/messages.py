"""What a conversation must hold beyond its types, and the plain messages that templates get."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.tool_history import for_templates
from schemas.chat_completions import (
    ChatCompletionContentPartParam,
    ChatCompletionMessageParam,
)
from schemas.tools import ChatCompletionMessageToolCallParam

_KNOWN = ChatCompletionMessageParam.__annotations__.keys()
_TEXT_PARTS = ("text", "refusal")


def template_messages(
    messages: Sequence[ChatCompletionMessageParam], policy: FieldPolicy
) -> list[Mapping[str, Any]]:
    """The messages without fields that nobody knows; raises for what cannot be honoured."""
    checked = [_checked(message, f"messages[{i}]", policy) for i, message in enumerate(messages)]
    return for_templates(checked)


def _checked(
    message: ChatCompletionMessageParam, place: str, policy: FieldPolicy
) -> Mapping[str, Any]:
    _check_content(message, f"{place}.content")
    if message.get("tool_calls"):
        _check_calls(message["tool_calls"] or (), f"{place}.tool_calls", policy)
    if message.keys() <= _KNOWN:
        return message
    if message.get("audio") is not None:
        _refuse(f"{place}.audio")
    policy.unknown(f"{place}.{key}" for key in message.keys() - _KNOWN)
    return {key: value for key, value in message.items() if key in _KNOWN}


def _check_calls(
    calls: Sequence[ChatCompletionMessageToolCallParam], place: str, policy: FieldPolicy
) -> None:
    """Clients send calls back as they got them, perhaps with the index of a delta."""
    for i, call in enumerate(calls):
        kind = call["type"]
        inner: Mapping[str, Any] = cast("Mapping[str, Any]", call)[kind]
        unknown = call.keys() - {"id", "type", "index", kind}
        policy.unknown(f"{place}[{i}].{key}" for key in unknown)
        unknown = inner.keys() - {"name", "arguments", "input"}
        policy.unknown(f"{place}[{i}].{kind}.{key}" for key in unknown)


def _check_content(message: ChatCompletionMessageParam, place: str) -> None:
    content = message.get("content")
    if isinstance(content, list):
        for i, part in enumerate(content):
            _check_part(part, f"{place}[{i}]")
    if message["role"] == "assistant":
        return  # an answer may be empty, and clients send back what they got
    if content is None:
        _missing(place)
    if content == []:
        wanted = "Expected an array with minimum length 1, but got an empty array instead."
        raise InvalidRequest(
            f"Invalid '{place}': empty array. {wanted}", param=place, code="empty_array"
        )


def _check_part(part: ChatCompletionContentPartParam, place: str) -> None:
    kind = part["type"]
    if kind not in _TEXT_PARTS:
        message = f"Invalid content type. {kind} is not supported by this server."
        raise InvalidRequest(message, param=f"{place}.type", code="unsupported_value")
    if kind not in part:
        _missing(f"{place}.{kind}")


def _missing(place: str) -> NoReturn:
    message = f"Missing required parameter: '{place}'."
    raise InvalidRequest(message, param=place, code="missing_required_parameter")


def _refuse(place: str) -> NoReturn:
    message = f"Unsupported parameter: '{place}' is not supported by this server."
    raise InvalidRequest(message, param=place, code="unsupported_parameter")


def prefilled_text(messages: Sequence[ChatCompletionMessageParam], *, param: str = "echo") -> str:
    """The text of the last message, which must be the assistant's. `param` asks for that."""
    last = messages[-1]
    if last["role"] != "assistant":
        message = f"Invalid '{param}': the last message must be the assistant's."
        raise InvalidRequest(message, param=param)
    content = last.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or part.get("refusal") or "" for part in content)
