"""Inputs of chat templates: validated messages in words that they know, and variables.

Templates know function calls, tool results and one name or another for reasoning. OpenAI's messages
may also have calls of custom tools, and the deprecated `function_call` and role `function`. For
what templates expect of arguments and empty contents, see prompting/chat_template.py.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast, get_args

import orjson

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.admission.model import Renders
from openai_frontend.serving.request.content_parts import check_alone
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.media_parts import KINDS, MediaPart
from schemas.chat_completions import (
    AudioURL,
    ChatCompletionContentPartParam,
    ChatCompletionMessageParam,
    ContentType,
    ImageURL,
    InputAudio,
)
from schemas.tools import ChatCompletionMessageToolCallParam

_KNOWN = ChatCompletionMessageParam.__annotations__.keys()
TEXT_PARTS = ("text", "refusal")
_MEDIA = {part: {"type": kind} for part, kind in KINDS.items()}  # what a template gets of a part
_CONTENTS = {kind: (kind,) for kind in get_args(ContentType)}
_PART_MEMBERS = frozenset({"type", *_CONTENTS})
_MEDIA_PART_MEMBERS = _PART_MEMBERS | {"uuid"}
_MEDIA_MEMBERS: Mapping[str, Collection[str]] = {
    "image_url": ImageURL.__annotations__.keys(),
    "input_audio": InputAudio.__annotations__.keys(),
    "audio_url": AudioURL.__annotations__.keys(),
}
_CALL_MEMBERS = frozenset({"name", "arguments", "input"})
_CALL_FIELDS = ("tool_calls", "function_call", "reasoning_content", "reasoning")

Message = Mapping[str, Any]


def template_messages(
    messages: Sequence[ChatCompletionMessageParam], policy: FieldPolicy, media: list[MediaPart]
) -> list[Mapping[str, Any]]:
    """The messages without unknown fields. Raises InvalidRequest for unsupported content.

    Appends the parts with media to `media`; templates only get their place.
    """
    checked: list[Mapping[str, Any]] = list(messages)
    for i, message in enumerate(messages):
        if len(message) != 2 or type(message.get("content")) is not str:  # more than a role
            checked[i] = _checked(message, f"messages[{i}]", policy, media)
    return for_templates(list(map(_without_media, checked)) if media else checked)


def _without_media(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = [_MEDIA.get(part["type"], part) for part in content]
    return {**message, "content": parts}


def _checked(
    message: ChatCompletionMessageParam, place: str, policy: FieldPolicy, media: list[MediaPart]
) -> Mapping[str, Any]:
    _check_content(message, f"{place}.content", policy, media)
    if message.get("tool_calls"):
        _check_calls(message["tool_calls"] or (), f"{place}.tool_calls", policy)
    if call := message.get("function_call"):
        _report(call, _CALL_MEMBERS, f"{place}.function_call", policy)
    if message.keys() <= _KNOWN:
        return message
    if message.get("audio") is not None:
        _refuse(f"{place}.audio")
    policy.unknown(f"{place}.{key}" for key in message.keys() - _KNOWN)
    return {key: value for key, value in message.items() if key in _KNOWN}


def _check_calls(
    calls: Sequence[ChatCompletionMessageToolCallParam], place: str, policy: FieldPolicy
) -> None:
    """Report unknown members. Clients return calls as received, perhaps with a delta's index."""
    for i, call in enumerate(calls):
        kind = call["type"]
        inner: Mapping[str, Any] = cast("Mapping[str, Any]", call)[kind]
        _report(call, {"id", "type", "index", kind}, f"{place}[{i}]", policy)
        _report(inner, _CALL_MEMBERS, f"{place}[{i}].{kind}", policy)


def _check_members(part: ChatCompletionContentPartParam, place: str, policy: FieldPolicy) -> None:
    """Report unknown members of a part and of its media; `check_alone` refuses other content."""
    kind = part["type"]
    if len(part) > 2:
        check_alone(cast("Mapping[str, Any]", part), place, _CONTENTS)
        _report(part, _MEDIA_PART_MEMBERS if kind in KINDS else _PART_MEMBERS, place, policy)
    media = part.get(kind)
    if isinstance(media, dict):
        _report(media, _MEDIA_MEMBERS[kind], f"{place}.{kind}", policy)


def _report(
    members: Mapping[str, Any], known: Collection[str], place: str, policy: FieldPolicy
) -> None:
    unknown = [f"{place}.{key}" for key in members if key not in known]
    if unknown:
        policy.unknown(unknown)


def _check_content(
    message: ChatCompletionMessageParam, place: str, policy: FieldPolicy, media: list[MediaPart]
) -> None:
    content = message.get("content")
    if isinstance(content, list):
        for i, part in enumerate(content):
            if part["type"] in KINDS:
                media.append(MediaPart(part, f"{place}[{i}]"))
            else:
                _check_part(part, f"{place}[{i}]")
                if len(part) == 2:
                    continue
            _check_members(part, f"{place}[{i}]", policy)
    if message["role"] == "assistant":
        return  # may be empty: clients return what they received
    if content is None:
        _missing(place)
    if content == []:
        expected = "Expected an array with minimum length 1, but got an empty array instead."
        raise InvalidRequest(
            f"Invalid '{place}': empty array. {expected}", param=place, code="empty_array"
        )


def _check_part(part: ChatCompletionContentPartParam, place: str) -> None:
    kind = part["type"]
    if kind not in TEXT_PARTS:
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
    """The text of the last message, which must be the assistant's. `param` requires it."""
    last = messages[-1]
    if last["role"] != "assistant":
        message = f"Invalid '{param}': the last message must have the role 'assistant'."
        raise InvalidRequest(message, param=param)
    content = last.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or part.get("refusal") or "" for part in content)


@dataclass(slots=True)
class AssistantTurn:
    """The texts, reasoning and calls of one turn of the assistant, which become one message."""

    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text for the user so far."""
        return "".join(self.texts)

    def message(self) -> dict[str, Any]:
        """The message, before `for_templates`."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = "\n".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
            message["content"] = message["content"] or None
        return message


def for_templates(messages: Sequence[Message]) -> list[Message]:
    """The messages in templates' words; those that need no change are the same objects."""
    ids: dict[str, str] = {}  # function name -> the id of its last call
    translated = list(messages)
    for i, message in enumerate(messages):  # a call for each would take more than the rest
        role = message["role"]
        if role == "function":
            translated[i] = _tool_result(message, i, ids)
        elif role == "assistant" and any(message.get(name) for name in _CALL_FIELDS):
            translated[i] = _assistant(dict(message), i, ids)
    return translated


def _new_id(index: int) -> str:
    """Nine letters and digits, as Mistral's templates require."""
    return f"call{index:05d}"


def _tool_result(message: Message, index: int, ids: Mapping[str, str]) -> Message:
    """A function's result as a tool result, for the function's last call."""
    id = ids.get(message.get("name") or "") or _new_id(index)
    return {**message, "role": "tool", "tool_call_id": id}


def _assistant(message: dict[str, Any], index: int, ids: dict[str, str]) -> Message:
    function = message.pop("function_call", None)
    if message.get("tool_calls"):
        message["tool_calls"] = [_function_call(call) for call in message["tool_calls"]]
    if function:
        ids[function["name"]] = id = _new_id(index)
        call = {"id": id, "type": "function", "function": function}
        message["tool_calls"] = [*(message.get("tool_calls") or ()), call]
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if reasoning:
        message["reasoning_content"] = message["reasoning"] = reasoning
        if message.get("tool_calls") and not message.get("content"):
            # gpt-oss's name; its template rejects it beside content
            message["thinking"] = reasoning
    return message


def _function_call(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """A custom tool's call as a call of the one-text function that the model was shown."""
    if call["type"] == "function":
        return call
    custom = call["custom"]
    arguments = orjson.dumps({"input": custom["input"]}).decode()
    function = {"name": custom["name"], "arguments": arguments}
    return {"id": call["id"], "type": "function", "function": function}


# Field -> its values, from little to much
_SCALES: Mapping[str, Sequence[str]] = {
    "reasoning_effort": ("none", "minimal", "low", "medium", "high", "xhigh", "max"),
    "verbosity": ("low", "medium", "high"),
}
# The behaviour of a model whose template does not know the field.
_NEUTRAL = {"reasoning_effort": "none", "verbosity": "medium"}

# Templates' names of the switch that OpenAI's effort "none" turns off.
_THINKING = ("enable_thinking", "thinking")
IGNORED = "ignored"
_TYPE = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # of a tool; other texts may not be in a header
_MAX_TYPES = 16


@dataclass(frozen=True, slots=True)
class TemplateVariables:
    """Variables for the template, and the values that replace the request's own."""

    values: Mapping[str, Any] = field(default_factory=dict)
    adjusted: Mapping[str, str] = field(default_factory=dict)  # field -> value, or IGNORED


NO_VARIABLES = TemplateVariables()


def ignored_tools(types: Iterable[str]) -> dict[str, str]:
    """Tools that were left out because no client runs them, as `TemplateVariables.adjusted`."""
    kinds = [*dict.fromkeys(kind if _TYPE.fullmatch(kind) else "other" for kind in types)]
    named = kinds if len(kinds) <= _MAX_TYPES else [*kinds[:_MAX_TYPES], "other"]
    return {f"tools.{kind}": IGNORED for kind in named}


def template_variables(
    hints: Mapping[str, str | None],
    variables: Mapping[str, Any] | None,
    model: Renders,
    policy: FieldPolicy,
) -> TemplateVariables:
    """Clamp the hints to what the template supports, unless the policy rejects that: effort and
    verbosity, under OpenAI's names. `variables` are the request's own, which win.

    Clients set hints once for all models, and they guarantee nothing about the output.
    """
    values: dict[str, Any] = {}
    adjusted: dict[str, str] = {}
    mapped: dict[str, str] = {}  # by the operator, which no policy rejects
    for name, hint in hints.items():
        if hint is None:
            continue
        if name == "reasoning_effort" and (own := model.reasoning_effort_map.get(hint)):
            mapped[name] = hint = own
        used = _variables(name, hint, model)
        values |= used
        if used.get(name, hint) != hint:
            adjusted[name] = used[name]
        elif not used and hint != _NEUTRAL[name]:
            adjusted[name] = IGNORED
    for name, value in adjusted.items():
        policy.adjusted(name, value, model.name)
    return TemplateVariables({**values, **(variables or {})}, {**mapped, **adjusted})


def thinking_switches(model: Renders, *, on: bool) -> dict[str, Any]:
    """The variables that turn reasoning on or off, of those that the template knows."""
    return {switch: on for switch in _THINKING if model.template_knows(switch)}


def _variables(name: str, hint: str, model: Renders) -> dict[str, Any]:
    if model.template_knows(name):
        return {name: _nearest(name, hint, model)}
    return thinking_switches(model, on=hint != "none") if name == "reasoning_effort" else {}


def _nearest(name: str, hint: str, model: Renders) -> str:
    """The supported value nearest to the requested one."""
    scale = _SCALES[name]
    by_distance = sorted(scale, key=lambda each: abs(scale.index(each) - scale.index(hint)))
    return next((each for each in by_distance if model.template_accepts(name, each)), hint)
