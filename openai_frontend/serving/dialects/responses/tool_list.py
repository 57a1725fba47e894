"""The tools of a request: functions, custom tools, namespaces, and the search for deferred tools.

A model knows one flat list of names. `ToolNames` maps it to the names of the request and back.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.dialects.responses.input_items import SEARCH
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.tools import (
    NO_TOOLS,
    CustomFormat,
    OfferedTools,
    Tools,
    check_tools_size,
)
from schemas.responses import ResponsesRequest

Tool = Mapping[str, Any]

_LONGEST_NAME = 64  # of a flattened name; longer ones are cut and get a digest
_SEARCH_PARAMETERS = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "What the tool should do."}},
    "required": ["query"],
}


class ToolName(NamedTuple):
    """A tool as the request names it."""

    kind: Literal["function", "custom", "tool_search"]
    name: str
    namespace: str | None = None


class ToolNames:
    """The flat names of tools, by those of the request, and back."""

    def __init__(self) -> None:
        self._flat: dict[tuple[str | None, str], str] = {}
        self.by_flat: dict[str, ToolName] = {}

    def add(self, tool: ToolName) -> str:
        """The flat name of a tool, which no other one has."""
        key = tool.namespace, tool.name
        flat = self._flat.get(key)
        if flat is None:
            flat = _flattened(*key)
            while flat in self.by_flat:
                flat = _with_digest(*key, taken=flat)
            self._flat[key] = flat
            self.by_flat[flat] = tool
        return flat

    def flat(self, name: str, namespace: str | None) -> str:
        """The flat name of a call in an earlier turn, whose tool may be gone."""
        key = namespace or None, name
        return self._flat.get(key) or _flattened(*key)


def _flattened(namespace: str | None, name: str) -> str:
    if namespace is None:
        return name
    flat = f"{namespace}__{name}"
    return flat if len(flat) <= _LONGEST_NAME else _with_digest(namespace, name)


def _with_digest(namespace: str | None, name: str, taken: str = "") -> str:
    """The name, cut, with a digest. `taken`: a flat name that another tool has."""
    digest = hashlib.sha256(f"{namespace}\0{name}\0{taken}".encode()).hexdigest()[:8]
    readable = name if namespace is None else f"{namespace}__{name}"
    return f"{readable[: _LONGEST_NAME - 9]}_{digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolList:
    """The tools that the model may call, their names, and those of the request that were left
    out because no client runs them.
    """

    tools: Tools = NO_TOOLS
    names: ToolNames = field(default_factory=ToolNames)
    shown: Sequence[Tool] = ()  # in the response
    ignored: Sequence[str] = ()  # types
    # flat name -> the function, of tools that the prompt has where a search has found them
    found: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class _Place(NamedTuple):
    tool: Tool
    path: str
    found: bool  # by a search, or added within the input
    searched: bool = False  # found by a search


def read_tools(request: ResponsesRequest, policy: FieldPolicy) -> ToolList:
    """Raises InvalidRequest for invalid combinations, and for a hosted tool that must be called."""
    places = [*_places(request.tools or (), "tools", found=False), *_in_input(request.input)]
    if not places:
        _check_choice_without_tools(request)
        return ToolList()
    reader = _ToolReader(searching=any(_is_search(each.tool) for each in places))
    for place in places:
        reader.add(place)
    policy.unknown(f"tools.{kind}" for kind in reader.ignored)
    offered = reader.offered
    mode, allowed = _chosen(request.tool_choice, reader)
    check_tools_size([each.tool for each in places], "tools")
    if not offered.names:
        return ToolList(shown=[], ignored=reader.ignored, names=reader.names)
    parallel = request.parallel_tool_calls is not False
    return ToolList(
        tools=offered.tools(mode, allowed, parallel=parallel),
        names=reader.names,
        shown=[_echoed(tool) for tool in request.tools or () if not _is_hosted(tool)],
        ignored=reader.ignored,
        found=reader.found,
    )


def has_tools_in_input(request: ResponsesRequest) -> bool:
    """Whether the list of tools depends on the input, not only on the other fields."""
    return next(_in_input(request.input), None) is not None


def _places(
    tools: Iterable[Tool], path: str, *, found: bool, searched: bool = False
) -> Iterator[_Place]:
    for at, tool in enumerate(tools):
        yield _Place(tool, f"{path}[{at}]", found, searched)


def _in_input(items: Any) -> Iterator[_Place]:
    if isinstance(items, str):
        return
    for at, item in enumerate(items):
        kind = item.get("type") if isinstance(item, dict) else None
        if kind in ("tool_search_output", "additional_tools"):
            searched = kind == "tool_search_output"
            tools, path = item.get("tools") or (), f"input[{at}].tools"
            yield from _places(tools, path, found=True, searched=searched)


def _is_search(tool: Tool) -> bool:
    return tool["type"] == "tool_search" and tool.get("execution") == "client"


def _is_hosted(tool: Tool) -> bool:
    return tool["type"] not in ("function", "custom", "namespace") and not _is_search(tool)


class _ToolReader:
    """Gathers the tools of one request."""

    def __init__(self, *, searching: bool) -> None:
        self.offered = OfferedTools()
        self.names = ToolNames()
        self.ignored: list[str] = []
        self.found: dict[str, Mapping[str, Any]] = {}
        self._searching = searching

    def add(self, place: _Place) -> None:
        """Add the place's tools. Those that a search has found are not in the prompt's list, whose
        change would move the conversation.
        """
        before = self.offered.names
        self._read(place)
        if place.searched and before:
            self.found |= {
                name: self.offered.hide(name) for name in sorted(self.offered.names - before)
            }

    def _read(self, place: _Place) -> None:
        tool, path, found, _ = place
        if _is_hosted(tool):
            self.ignored.append(str(tool["type"])[:64])
        elif tool["type"] == "namespace":
            for at, member in enumerate(tool["tools"]):
                deferred = tool.get("defer_loading") or member.get("defer_loading")
                if found or not (deferred and self._searching):
                    self._add(member, f"{path}.tools[{at}]", tool["name"], found=found)
        elif found or not (tool.get("defer_loading") and self._searching):
            self._add(tool, path, None, found=found)

    def _add(self, tool: Tool, path: str, namespace: str | None, *, found: bool) -> None:
        kind = tool["type"]
        name = ToolName(kind, SEARCH if kind == "tool_search" else tool["name"], namespace)
        flat = self.names.add(name)
        if found and flat in self.offered.names:
            return  # a search may find a tool again
        about: dict[str, Any] = {"description": tool.get("description")}
        if kind == "custom":
            self.offered.add_custom(flat, _custom_format(tool), path, **about)
            return
        schema = tool.get("parameters")
        if kind == "tool_search":
            schema = schema or _SEARCH_PARAMETERS
        self.offered.add_function(flat, schema, path, strict=bool(tool.get("strict")), **about)


def _custom_format(tool: Tool) -> CustomFormat:
    form: Mapping[str, Any] = tool.get("format") or {"type": "text"}
    return CustomFormat(
        type=form["type"], syntax=form.get("syntax"), definition=form.get("definition")
    )


def _echoed(tool: Tool) -> Tool:
    """The tool with the members that OpenAI's response always has."""
    if tool["type"] != "function":
        return tool
    return {"description": None, "parameters": None, "strict": False} | dict(tool)


Mode = Literal["none", "auto", "required"]


def _chosen(choice: Any, reader: _ToolReader) -> tuple[Mode, frozenset[str]]:
    """The mode of `tool_choice`, and the tools that may be called."""
    offered = reader.offered.names
    if choice is None or isinstance(choice, str):
        if choice == "required" and not offered:
            _refuse_hosted("tool_choice", "'required'")
        return cast("Mode", choice or "auto"), offered
    kind = choice["type"]
    if kind != "allowed_tools":
        return "required", frozenset([_named(choice, "tool_choice", reader)])
    mode: Mode = choice.get("mode") or "auto"
    tools = choice.get("tools")
    if not tools:
        param = "tool_choice.tools"
        message = f"Missing required parameter: '{param}'."
        raise InvalidRequest(message, param=param, code="missing_required_parameter")
    names = [
        _named(tool, f"tool_choice.tools[{at}]", reader)
        for at, tool in enumerate(tools)
        if not _is_hosted_choice(tool["type"])
    ]
    if not names and mode == "required":
        _refuse_hosted("tool_choice", "'required'")
    return mode, frozenset(names)


def _is_hosted_choice(kind: str) -> bool:
    return kind not in ("function", "custom", "namespace", "tool_search")


def _named(choice: Tool, place: str, reader: _ToolReader) -> str:
    """The flat name of an offered tool."""
    kind = choice["type"]
    if _is_hosted_choice(kind):
        _refuse_hosted(place, f"the type '{kind[:64]}'")
    name = SEARCH if kind == "tool_search" else choice.get("name")
    param = f"{place}.name"
    if not name:
        message = f"Missing required parameter: '{param}'."
        raise InvalidRequest(message, param=param, code="missing_required_parameter")
    flat = reader.names.flat(name, choice.get("namespace"))
    reader.offered.check_named(flat, param, "tools")
    if (kind == "custom") != reader.offered.is_custom(flat):
        message = f"Invalid value for '{param}': the tool '{name}' is not of type '{kind}'."
        raise InvalidRequest(message, param=param, code="invalid_value")
    return flat


def _refuse_hosted(place: str, choice: str) -> None:
    message = (
        f"Unsupported value: '{place}' with {choice} requires a hosted tool. This server runs no "
        "tools: only the client's functions and custom tools can be called."
    )
    raise InvalidRequest(message, param=place, code="unsupported_value")


def _check_choice_without_tools(request: ResponsesRequest) -> None:
    choice = request.tool_choice
    if choice is None or choice in ("none", "auto"):
        return
    message = "Invalid value for 'tool_choice': it is only allowed when 'tools' are specified."
    raise InvalidRequest(message, param="tool_choice", code="invalid_value")
