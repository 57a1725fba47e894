"""The tools of a chat completion, in both of OpenAI's forms: `tools`, and the older `functions`."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.tools import (
    NO_TOOLS,
    CustomFormat,
    OfferedTools,
    Tools,
    check_tools_size,
)
from schemas.chat_completions import ChatCompletionRequest
from schemas.tools import ChatCompletionTool, CustomTool, FunctionDefinition, NamedTool

_FIELDS = {"tools", "functions", "tool_choice", "function_call"}


def parse_tools(request: ChatCompletionRequest, policy: FieldPolicy) -> Tools:
    """The request's tools. Raises InvalidRequest for invalid combinations."""
    if not request.model_fields_set & _FIELDS:
        return NO_TOOLS
    if request.tools and request.functions:
        message = "'functions' cannot be used together with 'tools', which replaces it."
        raise InvalidRequest(message, param="functions")
    if not request.tools:
        _check_choice(request.tool_choice, "tool_choice", "tools")
    if not request.functions:
        _check_choice(request.function_call, "function_call", "functions")
        return _current(request, request.tools, policy) if request.tools else NO_TOOLS
    return _legacy(request, request.functions, policy)


def _current(
    request: ChatCompletionRequest, tools: Sequence[ChatCompletionTool], policy: FieldPolicy
) -> Tools:
    offered = _Offered(policy)
    for i, tool in enumerate(tools):
        offered.add(tool, f"tools[{i}]")
    check_tools_size(tools, "tools")
    mode, allowed = _chosen(request.tool_choice, offered)
    return offered.tools(mode, allowed, parallel=request.parallel_tool_calls is not False)


def _legacy(
    request: ChatCompletionRequest, functions: Sequence[FunctionDefinition], policy: FieldPolicy
) -> Tools:
    offered = _Offered(policy)
    for i, function in enumerate(functions):
        offered.add_definition(function, f"functions[{i}]")
    check_tools_size(functions, "functions")
    choice = request.function_call or "auto"
    if isinstance(choice, str):
        return offered.tools(choice, offered.names, parallel=False, legacy=True)
    offered.check_members(choice, {"name"}, "function_call")
    offered.check_named(choice["name"], "function_call.name", "functions")
    named = frozenset([choice["name"]])
    return offered.tools("required", named, parallel=False, legacy=True)


def _chosen(
    choice: Any, offered: "_Offered"
) -> tuple[Literal["none", "auto", "required"], frozenset[str]]:
    """The mode of `tool_choice`, and the tools that may be called."""
    if choice is None:
        return "auto", offered.names
    if isinstance(choice, str):
        return cast("Literal['none', 'auto', 'required']", choice), offered.names
    if choice["type"] != "allowed_tools":
        return "required", frozenset([offered.named(choice, "tool_choice")])
    allowed = choice["allowed_tools"]
    offered.check_members(choice, {"type", "allowed_tools"}, "tool_choice")
    offered.check_members(allowed, _ALLOWED, "tool_choice.allowed_tools")
    place = "tool_choice.allowed_tools.tools"
    names = [offered.named(tool, f"{place}[{i}]") for i, tool in enumerate(allowed["tools"])]
    return allowed["mode"], frozenset(names)


_ALLOWED = {"mode", "tools"}


class _Offered(OfferedTools):
    """Reports unknown members of the tools."""

    def __init__(self, policy: FieldPolicy) -> None:
        super().__init__()
        self._policy = policy

    def add(self, tool: ChatCompletionTool, place: str) -> None:
        """A tool of either kind."""
        self.check_members(tool, {"type", tool["type"]}, place)
        if tool["type"] == "function":
            self.add_definition(tool["function"], f"{place}.function")
        else:
            self._add_text_tool(tool["custom"], f"{place}.custom")

    def add_definition(self, function: FunctionDefinition, place: str) -> None:
        """A function in OpenAI's form."""
        self.check_members(function, FunctionDefinition.__annotations__.keys(), place)
        self.add_function(
            function["name"],
            function.get("parameters"),
            place,
            description=function.get("description"),
            strict=bool(function.get("strict")),
        )

    def _add_text_tool(self, custom: CustomTool, place: str) -> None:
        self.check_members(custom, CustomTool.__annotations__.keys(), place)
        text_format: Mapping[str, Any] = custom.get("format") or {"type": "text"}
        grammar = text_format.get("grammar") or {}
        form = CustomFormat(
            type=text_format["type"],
            syntax=grammar.get("syntax"),
            definition=grammar.get("definition"),
        )
        self.add_custom(custom["name"], form, place, description=custom.get("description"))
        self.check_members(text_format, {"type", text_format["type"]}, f"{place}.format")
        self.check_members(grammar, {"syntax", "definition"}, f"{place}.format.grammar")

    def check_members(self, members: Mapping[str, Any], known: Any, place: str) -> None:
        """Report the members that are not known."""
        self._policy.unknown(f"{place}.{key}" for key in members.keys() - known)

    def named(self, tool: NamedTool, place: str) -> str:
        """The name of an offered tool. Raises InvalidRequest for an unknown name or wrong kind."""
        kind = tool["type"]
        chosen: Mapping[str, Any] = cast("Mapping[str, Any]", tool)[kind]
        name = str(chosen["name"])
        self.check_members(tool, {"type", kind}, place)
        self.check_members(chosen, {"name"}, f"{place}.{kind}")
        param = f"{place}.{kind}.name"
        self.check_named(name, param, "tools")
        if (kind == "custom") != self.is_custom(name):
            message = f"Invalid value for '{param}': the tool '{name}' is not of type '{kind}'."
            raise InvalidRequest(message, param=param, code="invalid_value")
        return name


def _check_choice(choice: Any, param: str, field: str) -> None:
    """Reject a choice without tools. "none" and "auto" are allowed, since they require nothing."""
    if choice is None or choice in ("none", "auto"):
        return
    message = (
        f"Invalid value for '{param}': '{param}' is only allowed when '{field}' are specified."
    )
    raise InvalidRequest(message, param=param, code="invalid_value")
