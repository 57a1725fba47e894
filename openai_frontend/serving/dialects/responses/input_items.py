"""The items of a request's input as messages in the words of chat templates.

Items of one assistant turn (reasoning, text, calls) become one message. Histories move between
providers, so an item that only another server can read becomes a short note, or nothing.
"""

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.request.client_json import client_json
from openai_frontend.serving.request.content_parts import check_alone
from openai_frontend.serving.request.media_parts import MediaPart
from openai_frontend.serving.request.sealed_text import UNENCRYPTED, TextSeal, Unsealer
from openai_frontend.serving.request.template_inputs import AssistantTurn, for_templates
from schemas.responses import ConfigurationUpdate

Item = Mapping[str, Any]

# Parts of text under their types
_TEXTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
# Type of a part -> its members with content
_CONTENTS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(_TEXTS, ("text",)),
    "refusal": ("refusal",),
    **dict.fromkeys(("input_image", "computer_screenshot"), ("image_url", "file_id")),
    "input_file": ("file_data", "file_id", "file_url"),
    "input_audio": ("input_audio",),
    "input_json": ("data",),
}
_IMAGE = {"type": "image"}  # a template gets only the place of an image
# Items without meaning for another server
_SKIPPED = frozenset({"compaction", "context_compaction"})
_LONGEST_NOTE = 2000  # characters of what a hosted tool has returned
SEARCH = "tool_search"  # the name of the search for tools, as the model calls it


@dataclass(slots=True)
class ReadInput:
    """The messages, and what else the input says."""

    messages: Sequence[Mapping[str, Any]]
    media: Sequence[MediaPart]
    update: ConfigurationUpdate | None  # the last one
    unknown: Sequence[str]  # paths of items that were skipped, with their types


FlatName = Callable[[str, str | None], str]  # (name, namespace) -> the name in the prompt


def read_input(
    given: str | Sequence[Any],
    flat_name: FlatName,
    *,
    all_reasoning: bool = True,
    seal: TextSeal = UNENCRYPTED,
    found: Mapping[str, Item] = MappingProxyType({}),
) -> ReadInput:
    """`flat_name` gives the model's name of a tool in a namespace. Without `all_reasoning`, that of
    earlier turns is left out. `seal` is the caller's; `found` are functions that searches have
    found, by flat name. Raises InvalidRequest for what no server could read.
    """
    if isinstance(given, str):
        return ReadInput([{"role": "user", "content": given}], (), None, ())
    first = 0 if all_reasoning else _last_question(given)
    reader = _InputReader(flat_name, Unsealer(seal), found, reasoning_from=first)
    for at, item in enumerate(given):
        reader.read(item, at)
    return reader.result()


class _InputReader:
    def __init__(
        self,
        flat_name: FlatName,
        unsealer: Unsealer,
        found: Mapping[str, Item],
        *,
        reasoning_from: int,
    ) -> None:
        self._flat_name = flat_name
        self._messages: list[Mapping[str, Any]] = []
        self._media: list[MediaPart] = []
        self._turn: AssistantTurn | None = None
        self._update: ConfigurationUpdate | None = None
        self._unknown: list[str] = []
        self._reasoning_from = reasoning_from
        self._unsealer = unsealer
        self._functions = found
        self._at = 0  # the position of the item that is read
        self._readers: Mapping[str, Callable[[Item, str], None]] = {
            "message": self._message,
            "agent_message": self._agent_message,
            "function_call": self._function_call,
            "function_call_output": self._output,
            "custom_tool_call": self._custom_call,
            "custom_tool_call_output": self._output,
            "reasoning": self._reasoning,
            "tool_search_call": self._search,
            "tool_search_output": self._found,
            "additional_tools": self._more_tools,
        }

    def result(self) -> ReadInput:
        self._end_turn()
        messages = for_templates(self._messages)
        return ReadInput(messages, self._media, self._update, self._unknown)

    def read(self, item: Item | ConfigurationUpdate, at: int) -> None:
        """Add the item at this position of the input."""
        if isinstance(item, ConfigurationUpdate):
            self._update = item
            return
        self._at = at
        kind, place = item.get("type"), f"input[{at}]"
        if kind is None:  # an empty one is an unknown item, whose fields nothing has checked
            kind = "message"
        read = self._readers.get(kind)
        if read is None:
            self._other(kind, item, place)
        else:
            read(item, place)

    def _agent_message(self, item: Item, place: str) -> None:
        author, text = item.get("author") or "agent", self._text(item["content"], place)
        self._add({"role": "user", "content": f"Message from {author}:\n{text}"})

    def _function_call(self, item: Item, place: str) -> None:
        name = self._flat_name(item["name"], item.get("namespace"))
        self._call(item["call_id"], name, item["arguments"])

    def _custom_call(self, item: Item, place: str) -> None:
        custom = {
            "name": self._flat_name(item["name"], item.get("namespace")),
            "input": item["input"],
        }
        self._in_turn().calls.append({"id": item["call_id"], "type": "custom", "custom": custom})

    def _reasoning(self, item: Item, place: str) -> None:
        if self._at >= self._reasoning_from and (thought := self._thought(item)):
            self._in_turn().reasoning.append(thought)

    def _thought(self, item: Item) -> str:
        """Our own sealed text, else the content, else the summary; empty if there is none."""
        sealed = self._unsealer.read(item.get("encrypted_content"))
        if sealed is not None:
            return sealed
        parts = item.get("content") or item.get("summary") or ()
        return "\n".join(part["text"] for part in parts if part.get("text"))

    def _search(self, item: Item, place: str) -> None:
        arguments = client_json(item.get("arguments") or {}).decode()
        self._call(self._call_id(item), SEARCH, arguments)

    def _found(self, item: Item, place: str) -> None:
        tools = [self._definition(*name) for name in _names(item.get("tools") or ())]
        found = client_json({"tools": tools}).decode()
        self._add({"role": "tool", "tool_call_id": self._call_id(item), "content": found})

    def _definition(self, name: str, namespace: str | None) -> Item | str:
        """The function of a found tool; of one that the prompt's list has, the name."""
        flat = self._flat_name(name, namespace)
        return self._functions.get(flat, flat)

    def _more_tools(self, item: Item, place: str) -> None:
        """The list of tools has them."""

    def _call_id(self, item: Item) -> str:
        """The id of the item's call; some clients leave it out of a call of their own."""
        return item.get("call_id") or f"call{self._at:05d}"

    def _other(self, kind: str, item: Item, place: str) -> None:
        if kind == "item_reference":
            _refuse_reference(item, place)
        if kind == "compaction_trigger":
            message = f"Unsupported value: '{place}' asks for a compaction, which is not supported."
            raise InvalidRequest(message, param=place, code="unsupported_value")
        if kind in _SKIPPED:
            return
        if kind.endswith(("_call", "_call_output")) or kind.startswith("mcp_"):
            self._in_turn().texts.append(_note(kind, item))
            return
        self._unknown.append(f"{place}.type={kind}")

    def _add(self, message: Mapping[str, Any]) -> None:
        self._end_turn()
        self._messages.append(message)

    def _in_turn(self) -> AssistantTurn:
        if self._turn is None:
            self._turn = AssistantTurn()
        return self._turn

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._messages.append(self._turn.message())
            self._turn = None

    def _message(self, item: Item, place: str) -> None:
        if item["role"] == "assistant":
            self._in_turn().texts.append(self._text(item["content"], f"{place}.content"))
        else:
            content = self._content(item["content"], f"{place}.content")
            self._add({"role": item["role"], "content": content})

    def _call(self, id: str, name: str, arguments: str) -> None:
        function = {"name": name, "arguments": arguments}
        self._in_turn().calls.append({"id": id, "type": "function", "function": function})

    def _output(self, item: Item, place: str) -> None:
        content = self._content(item["output"], f"{place}.output", tool=True)
        self._add({"role": "tool", "tool_call_id": self._call_id(item), "content": content})

    def _content(self, content: Any, place: str, *, tool: bool = False) -> Any:
        """A text, or parts if there are images."""
        if isinstance(content, str):
            return content
        if not content and not tool:
            expected = "Expected an array with minimum length 1, but got an empty array instead."
            message = f"Invalid '{place}': empty array. {expected}"
            raise InvalidRequest(message, param=place, code="empty_array")
        parts = [self._part(part, f"{place}[{i}]") for i, part in enumerate(content)]
        if any(part is _IMAGE for part in parts):
            return parts
        return "\n".join(part["text"] for part in parts)

    def _text(self, content: Any, place: str) -> str:
        """The text of a message that cannot have images."""
        if isinstance(content, str):
            return content
        texts = [self._part(part, f"{place}[{i}]", images=False) for i, part in enumerate(content)]
        return "".join(part["text"] for part in texts)

    def _part(self, part: Item, place: str, *, images: bool = True) -> Mapping[str, Any]:
        kind = part["type"]
        if len(part) > 2:
            check_contents(part, place)
        if kind in _TEXTS:
            return {"type": "text", "text": _required(part, "text", place)}
        if kind == "refusal":
            return {"type": "text", "text": part.get("refusal") or ""}
        if kind in ("input_image", "computer_screenshot") and images:
            url = part.get("image_url")
            if not url:
                _refuse_file(f"{place}.file_id" if part.get("file_id") else f"{place}.image_url")
            image = {"url": url, "detail": part.get("detail") or "auto"}
            self._media.append(MediaPart({"type": "image_url", "image_url": image}, place))
            return _IMAGE
        if kind == "input_file":
            return {"type": "text", "text": _file_text(part, place)}
        message = f"Invalid content type. {kind[:64]} is not supported by this server."
        raise InvalidRequest(message, param=f"{place}.type", code="unsupported_value")


def _last_question(items: Sequence[Any]) -> int:
    """The position of the last item that the user has written."""
    for at in range(len(items) - 1, -1, -1):
        item = items[at]
        if not isinstance(item, ConfigurationUpdate) and item.get("role") == "user":
            return at
    return 0


def _names(tools: Sequence[Item]) -> Iterator[tuple[str, str | None]]:
    """The names of tools, each with its namespace."""
    for tool in tools:
        if tool["type"] == "namespace":
            for member in tool["tools"]:
                yield member["name"], tool["name"]
        else:
            yield str(tool.get("name") or tool["type"]), None


def _note(kind: str, item: Item) -> str:
    """A short text for what a hosted tool did in an earlier turn, elsewhere."""
    shown = {key: value for key, value in item.items() if key not in ("id", "type", "status")}
    return f"[{kind[:64]} {client_json(shown).decode()[:_LONGEST_NOTE]}]"


def check_contents(part: Item, place: str) -> None:
    """Refuse a part that also has the content of another type."""
    check_alone(part, place, _CONTENTS)


def _required(part: Item, name: str, place: str) -> str:
    value = part.get(name)
    if not isinstance(value, str):
        message = f"Missing required parameter: '{place}.{name}'."
        raise InvalidRequest(message, param=f"{place}.{name}", code="missing_required_parameter")
    return value


def _file_text(part: Item, place: str) -> str:
    """The text of a file that is sent as a data URL of text."""
    data = part.get("file_data")
    head, comma, encoded = (data or "").partition(",")
    if not comma or not head.startswith("data:text/") or not head.endswith(";base64"):
        name = next((each for each in ("file_id", "file_url") if part.get(each)), "file_data")
        _refuse_file(f"{place}.{name}")
    try:
        text = base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        message = f"Invalid '{place}.file_data': expected UTF-8 text in base64."
        raise InvalidRequest(message, param=f"{place}.file_data", code="invalid_value") from None
    filename = part.get("filename")
    return f"{filename}:\n{text}" if filename else text


def _refuse_file(place: str) -> NoReturn:
    message = (
        f"Unsupported value: '{place}': this server stores no files and reads none by URL. Send an "
        "image as a data URL in 'image_url', a text as 'input_text' or as a data URL of text."
    )
    raise InvalidRequest(message, param=place, code="unsupported_value")


def _refuse_reference(item: Item, place: str) -> NoReturn:
    id = str(item.get("id"))[:64]
    message = f"Item with id '{id}' not found: this server stores no items. Send the item itself."
    raise InvalidRequest(message, param=place, code="item_not_found")
