"""A request's tools: which are offered, which may be called, and how.

`constraints/` validates the schemas of their arguments.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import orjson

from openai_frontend.errors import InvalidRequest
from openai_frontend.parsing.output_format import OutputFormat
from openai_frontend.serving.request.field_policy import FieldPolicy
from schemas.chat_completions import ChatCompletionRequest
from schemas.tools import (
    ChatCompletionTool,
    CustomTool,
    FunctionDefinition,
    NamedTool,
)

MAX_TOOLS_BYTES = 1024 * 1024  # of their JSON, which the chat template writes into the prompt

Schema = Mapping[str, Any]

_FIELDS = {"tools", "functions", "tool_choice", "function_call"}
_ANY_OBJECT: Schema = {"type": "object"}
_NO_PARAMETERS: Schema = {
    "type": "object",
    "properties": {},
}  # templates iterate over the properties
# Models call functions, so they see a custom tool as a function of one text.
_TEXT_INPUT: Schema = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomFormat:
    """The format of a custom tool's input."""

    type: Literal["text", "grammar"] = "text"
    syntax: Literal["regex", "lark"] | None = None
    definition: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """A request's tools, validated."""

    # name -> the JSON schema of its arguments; custom tools too, as functions of one text
    functions: Mapping[str, Schema] = field(default_factory=dict)
    custom: Mapping[str, CustomFormat] = field(default_factory=dict)  # the custom tools among them
    choice: Literal["none", "auto", "required"] = "none"
    allowed: frozenset[str] = frozenset()  # the tools that may be called
    parallel: bool = True  # False: at most one call
    strict: frozenset[str] = frozenset()  # arguments must match their schemas even with "auto"
    legacy: bool = False  # `functions` in the request, `function_call` in the response
    places: Mapping[str, str] = field(default_factory=dict)  # name -> request field of its schema
    for_template: Sequence[Mapping[str, Any]] = ()  # for the chat template

    @property
    def in_use(self) -> bool:
        """Whether the output may have calls."""
        return self.choice != "none"

    def schema_place(self, name: str) -> str:
        """The request field that constrains the arguments of a tool."""
        place = self.places[name]
        return f"{place}.grammar.definition" if name in self.custom else place

    @property
    def param(self) -> str:
        """The request field that offers the tools."""
        return "functions" if self.legacy else "tools"


NO_TOOLS = Tools()


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


def require_tool_support(tools: Tools, output_format: OutputFormat, *, shown: bool) -> None:
    """Raise InvalidRequest for a model without tool calling. `shown`: its template takes tools."""
    if not tools.in_use or (shown and output_format.tools):
        return
    reason = (
        "the server does not recognise tool calls in its output"
        if shown
        else "its chat template does not support tools"
    )
    message = f"Unsupported parameter: '{tools.param}' is not supported with this model: {reason}."
    raise InvalidRequest(message, param=tools.param, code="unsupported_parameter")


def _current(
    request: ChatCompletionRequest, tools: Sequence[ChatCompletionTool], policy: FieldPolicy
) -> Tools:
    offered = _Offered(policy)
    for i, tool in enumerate(tools):
        offered.add(tool, f"tools[{i}]")
    _check_size(tools, "tools")
    mode, allowed = _chosen(request.tool_choice, offered, policy)
    return offered.tools(mode, allowed, parallel=request.parallel_tool_calls is not False)


def _legacy(
    request: ChatCompletionRequest, functions: Sequence[FunctionDefinition], policy: FieldPolicy
) -> Tools:
    offered = _Offered(policy)
    for i, function in enumerate(functions):
        offered.add_function(function, f"functions[{i}]")
    _check_size(functions, "functions")
    choice = request.function_call or "auto"
    if isinstance(choice, str):
        return offered.tools(choice, offered.names, parallel=False, legacy=True)
    offered.check_named(choice["name"], "function_call.name", "functions")
    named = frozenset([choice["name"]])
    return offered.tools("required", named, parallel=False, legacy=True)


def _chosen(
    choice: Any, offered: "_Offered", policy: FieldPolicy
) -> tuple[Literal["none", "auto", "required"], frozenset[str]]:
    """The mode of `tool_choice`, and the tools that may be called."""
    if choice is None:
        return "auto", offered.names
    if isinstance(choice, str):
        return cast("Literal['none', 'auto', 'required']", choice), offered.names
    policy.unknown(f"tool_choice.{key}" for key in choice.keys() - {"type", choice["type"]})
    if choice["type"] != "allowed_tools":
        return "required", frozenset([offered.named(choice, "tool_choice")])
    allowed = choice["allowed_tools"]
    policy.unknown(f"tool_choice.allowed_tools.{key}" for key in allowed.keys() - _ALLOWED)
    place = "tool_choice.allowed_tools.tools"
    names = [offered.named(tool, f"{place}[{i}]") for i, tool in enumerate(allowed["tools"])]
    return allowed["mode"], frozenset(names)


_ALLOWED = {"mode", "tools"}


class _Offered:
    """Gathers the tools of one request."""

    def __init__(self, policy: FieldPolicy) -> None:
        self._policy = policy
        self._functions: dict[str, Schema] = {}
        self._custom: dict[str, CustomFormat] = {}
        self._strict: set[str] = set()
        self._places: dict[str, str] = {}
        self._shown: dict[str, Mapping[str, Any]] = {}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._functions)

    def add(self, tool: ChatCompletionTool, place: str) -> None:
        self._check_members(tool, {"type", tool["type"]}, place)
        if tool["type"] == "function":
            self.add_function(tool["function"], f"{place}.function")
        else:
            self._add_custom(tool["custom"], f"{place}.custom")

    def add_function(self, function: FunctionDefinition, place: str) -> None:
        self._check_members(function, FunctionDefinition.__annotations__.keys(), place)
        name = function["name"]
        schema = function.get("parameters")
        self._add(name, schema or _ANY_OBJECT, f"{place}.name")
        self._places[name] = f"{place}.parameters"
        if function.get("strict"):
            self._strict.add(name)
        self._show(name, function.get("description"), schema or _NO_PARAMETERS)

    def _add_custom(self, custom: CustomTool, place: str) -> None:
        self._check_members(custom, CustomTool.__annotations__.keys(), place)
        name = custom["name"]
        self._add(name, _TEXT_INPUT, f"{place}.name")
        self._places[name] = f"{place}.format"
        given: Mapping[str, Any] = custom.get("format") or {"type": "text"}
        grammar = given.get("grammar") or {}
        self._check_members(given, {"type", given["type"]}, f"{place}.format")
        self._check_members(grammar, {"syntax", "definition"}, f"{place}.format.grammar")
        form = CustomFormat(
            type=given["type"],
            syntax=grammar.get("syntax"),
            definition=grammar.get("definition"),
        )
        self._custom[name] = form
        self._show(name, _described(custom.get("description") or "", form), _TEXT_INPUT)

    def _show(self, name: str, description: str | None, parameters: Schema) -> None:
        """Add what the model sees, without `strict`, on which models are not trained."""
        described = {} if description is None else {"description": description}
        function = {"name": name, **described, "parameters": parameters}
        self._shown[name] = {"type": "function", "function": function}

    def _add(self, name: str, schema: Schema, place: str) -> None:
        if name in self._functions:
            message = f"Invalid '{place}': another tool already has the name '{name}'."
            raise InvalidRequest(message, param=place, code="invalid_value")
        self._functions[name] = schema

    def _check_members(self, given: Mapping[str, Any], known: Any, place: str) -> None:
        self._policy.unknown(f"{place}.{key}" for key in given.keys() - known)

    def named(self, tool: NamedTool, place: str) -> str:
        """The name of an offered tool. Raises InvalidRequest for an unknown name or wrong kind."""
        kind = tool["type"]
        name = str(cast("Mapping[str, Any]", tool)[kind]["name"])
        param = f"{place}.{kind}.name"
        self.check_named(name, param, "tools")
        if (kind == "custom") != (name in self._custom):
            message = f"Invalid value for '{param}': the tool '{name}' is not of type '{kind}'."
            raise InvalidRequest(message, param=param, code="invalid_value")
        return name

    def check_named(self, name: str, param: str, field: str) -> None:
        if name not in self._functions:
            message = f"Invalid value for '{param}': '{field}' has no tool of this name."
            raise InvalidRequest(message, param=param, code="invalid_value")

    def tools(
        self,
        choice: Literal["none", "auto", "required"],
        allowed: frozenset[str],
        *,
        parallel: bool,
        legacy: bool = False,
    ) -> Tools:
        return Tools(
            functions=self._functions,
            custom=self._custom,
            choice=choice,
            allowed=allowed,
            parallel=parallel,
            strict=frozenset(self._strict),
            legacy=legacy,
            places=self._places,
            for_template=list(self._for_template(choice, allowed)),
        )

    def _for_template(self, choice: str, allowed: frozenset[str]) -> Iterator[Mapping[str, Any]]:
        """The tools that may be called. Without a grammar only the prompt keeps a model from
        calling a tool, so "none" shows it no tools (like vLLM's
        --exclude-tools-when-tool-choice-none); otherwise the text of a call could be the content.
        """
        if choice == "none":
            return
        for name, tool in self._shown.items():
            if name in allowed:
                yield tool


def _described(description: str, form: CustomFormat) -> str:
    """The description of a custom tool for the model, with its grammar."""
    if form.type == "text":
        return description
    kind = "regular expression" if form.syntax == "regex" else "Lark grammar"
    rule = f"The input must match this {kind}: {form.definition}"
    return f"{description}\n{rule}" if description else rule


def _check_size(tools: Any, param: str) -> None:
    try:
        size = len(orjson.dumps(tools))
    except (
        orjson.JSONEncodeError
    ) as error:  # a number of more than 64 bits, which the engine's JSON does not have either
        raise InvalidRequest(f"Invalid '{param}': {error}.", param=param) from None
    if size > MAX_TOOLS_BYTES:
        message = f"Invalid '{param}': it has {size} bytes of JSON; the limit is {MAX_TOOLS_BYTES}."
        raise InvalidRequest(message, param=param)


def _check_choice(choice: Any, param: str, field: str) -> None:
    """Reject a choice without tools. "none" and "auto" are allowed, since they require nothing."""
    if choice is None or choice in ("none", "auto"):
        return
    message = (
        f"Invalid value for '{param}': '{param}' is only allowed when '{field}' are specified."
    )
    raise InvalidRequest(message, param=param, code="invalid_value")
