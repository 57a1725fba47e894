"""The tools of a request. Those that Anthropic runs or defines are left out."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.tools import (
    NO_TOOLS,
    OfferedTools,
    Tools,
    check_tools_size,
)

# Members of a tool. The last five have no effect: arguments are always streamed, and every tool is
# offered at once
_KNOWN = frozenset(
    {"type", "name", "description", "input_schema", "strict", "cache_control", "defer_loading",
     "input_examples", "eager_input_streaming", "allowed_callers"}
)  # fmt: skip

ToolChoice = Mapping[str, Any] | None


def read_tools(
    tools: Sequence[Mapping[str, Any]] | None, choice: ToolChoice, policy: FieldPolicy
) -> Tools:
    """Raises InvalidRequest for an invalid choice, and for one of a tool that was left out."""
    offered, others = OfferedTools(), []
    for at, tool in enumerate(tools or ()):
        if "input_schema" in tool:
            _add(offered, tool, f"tools[{at}]", policy)
        else:
            others.append(tool)
    check_tools_size(tools, "tools")
    policy.unknown(f"tools.{tool['type']}" for tool in others)
    mode, allowed = _chosen(choice, offered, others)
    if not offered.names:
        return NO_TOOLS
    parallel = not (choice or {}).get("disable_parallel_tool_use")
    return offered.tools(mode, allowed, parallel=parallel)


def _add(offered: OfferedTools, tool: Mapping[str, Any], place: str, policy: FieldPolicy) -> None:
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
