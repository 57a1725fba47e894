"""The tools of a request. Those that Anthropic runs or defines are left out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.request.client_json import client_json
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.tools import (
    NO_TOOLS,
    OfferedTools,
    Tools,
    check_tools_size,
)

_SERVER_SEARCH = "tool_search_tool"  # of the types of tools with which a server searches
# Members of a tool. The last four have no effect: arguments are always streamed
_KNOWN = frozenset(
    {"type", "name", "description", "input_schema", "strict", "cache_control", "defer_loading",
     "input_examples", "eager_input_streaming", "allowed_callers"}
)  # fmt: skip

ToolChoice = Mapping[str, Any] | None
Tool = Mapping[str, Any]


class FoundTools:
    """Deferred tools, which the prompt has where the client's search has found them.

    The tools at its beginning stay the same, and so does the cached prefix.
    """

    def __init__(
        self,
        tools: Sequence[Tool] | None,
        choice: ToolChoice,
        messages: Sequence[Mapping[str, Any]],
    ) -> None:
        deferred = _deferred(tools or ())
        referenced = set(_references(messages)) if deferred else set()
        self.definitions = {
            name: _definition(tool) for name, tool in deferred.items() if name in referenced
        }
        self.hidden = deferred.keys() - referenced - {(choice or {}).get("name")}


def _deferred(tools: Sequence[Tool]) -> dict[str, Tool]:
    """The tools that the client's search can find. None if the model could not call a search, and
    none if a server would search: then all tools are offered at once.
    """
    if any(str(tool.get("type")).startswith(_SERVER_SEARCH) for tool in tools):
        return {}
    own = [tool for tool in tools if "input_schema" in tool]
    deferred = {tool["name"]: tool for tool in own if tool.get("defer_loading") is True}
    return deferred if len(deferred) < len(own) else {}


def _references(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The names of the tools that results and additions refer to."""
    for message in messages:
        content = message["content"]
        for block in () if isinstance(content, str) else content:
            inner = block.get("content") if block["type"] == "tool_result" else None
            for each in (block, *(inner if isinstance(inner, list) else ())):
                name = referenced_tool(each)
                if name is not None:
                    yield name


def referenced_tool(block: Mapping[str, Any]) -> str | None:
    """The name of the tool that the block makes callable."""
    if block["type"] == "tool_reference":
        return str(block["tool_name"])
    tool = block.get("tool") if block["type"] == "tool_addition" else None
    name = tool.get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) else None


def _definition(tool: Tool) -> str:
    """In the form that Claude Code describes to the model."""
    described = {name: tool[name] for name in ("description", "name") if tool.get(name)}
    function = client_json({**described, "parameters": tool["input_schema"]}).decode()
    return f"<function>{function}</function>"


def read_tools(
    tools: Sequence[Tool] | None, choice: ToolChoice, policy: FieldPolicy, found: FoundTools
) -> Tools:
    """Raises InvalidRequest for an invalid choice, and for one of a tool that was left out."""
    offered, others = OfferedTools(), []
    for at, tool in enumerate(tools or ()):
        if "input_schema" not in tool:
            others.append(tool)
        elif tool["name"] not in found.hidden:
            _add(offered, tool, f"tools[{at}]", policy)
    for name in found.definitions:
        offered.hide(name)
    check_tools_size(tools, "tools")
    policy.unknown(f"tools.{tool['type']}" for tool in others)
    mode, allowed = _chosen(choice, offered, others)
    if not offered.names:
        return NO_TOOLS
    parallel = not (choice or {}).get("disable_parallel_tool_use")
    return offered.tools(mode, allowed, parallel=parallel)


def _add(offered: OfferedTools, tool: Tool, place: str, policy: FieldPolicy) -> None:
    policy.unknown(f"{place}.{name}" for name in tool.keys() - _KNOWN)
    offered.add_function(
        tool["name"],
        tool["input_schema"],
        place,
        description=tool.get("description"),
        strict=bool(tool.get("strict")),
        schema_field="input_schema",
    )


def _chosen(
    choice: ToolChoice, offered: OfferedTools, others: Sequence[Mapping[str, Any]]
) -> tuple[Literal["none", "auto", "required"], frozenset[str]]:
    kind = "auto" if choice is None else choice["type"]
    if choice is not None and kind == "tool":
        name = choice["name"]
        if name not in offered.names and name in {tool.get("name") for tool in others}:
            raise _hosted("tool_choice.name", f"the tool '{name[:128]}'")
        offered.check_named(name, "tool_choice.name", "tools")
        return "required", frozenset([name])
    if kind != "any":
        return ("none" if kind == "none" else "auto"), offered.names
    if not offered.names and others:
        raise _hosted("tool_choice.type", "one of the tools")
    if not offered.names:
        message = "Invalid value for 'tool_choice.type': 'any' requires 'tools'."
        raise InvalidRequest(message, param="tool_choice.type")
    return "required", offered.names


def _hosted(place: str, choice: str) -> InvalidRequest:
    message = (
        f"Unsupported value: '{place}' requires {choice}, which Anthropic runs or defines. This "
        "server offers only tools with an 'input_schema', which the client runs."
    )
    return InvalidRequest(message, param=place, code="unsupported_value")
