"""A request's tools: which are offered, which may be called, and how.

A dialect reads them from its requests; `constraints/` validates the schemas of their arguments.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from openai_frontend.errors import InvalidRequest
from openai_frontend.parsing.output_format import OutputFormat
from openai_frontend.serving.request.client_json import client_json

MAX_TOOLS_BYTES = 1024 * 1024  # of their JSON, which the chat template writes into the prompt

Schema = Mapping[str, Any]

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


class OfferedTools:
    """Gathers the tools of one request, as a dialect reads them."""

    def __init__(self) -> None:
        self._functions: dict[str, Schema] = {}
        self._custom: dict[str, CustomFormat] = {}
        self._strict: set[str] = set()
        self._places: dict[str, str] = {}
        self._shown: dict[str, Mapping[str, Any]] = {}

    @property
    def names(self) -> frozenset[str]:
        """The names of the tools so far."""
        return frozenset(self._functions)

    def add_function(
        self,
        name: str,
        schema: Schema | None,
        place: str,
        *,
        description: str | None,
        strict: bool,
        schema_field: str = "parameters",
    ) -> None:
        """Add a function whose arguments match the schema. `place` is the request field that has
        its `name` and `schema_field`. Raises InvalidRequest if another tool has this name.
        """
        self._add(name, schema or _ANY_OBJECT, f"{place}.name")
        self._places[name] = f"{place}.{schema_field}"
        if strict:
            self._strict.add(name)
        self._show(name, description, schema or _NO_PARAMETERS)

    def hide(self, name: str) -> Mapping[str, Any]:
        """Leave the tool out of the prompt's list: the conversation has what is returned."""
        function: Mapping[str, Any] = self._shown.pop(name)["function"]
        return function

    def add_custom(
        self, name: str, form: CustomFormat, place: str, *, description: str | None
    ) -> None:
        """Add a tool of one text. `place` has its `name` and `format`. Raises InvalidRequest if
        another tool has this name.
        """
        self._add(name, _TEXT_INPUT, f"{place}.name")
        self._places[name] = f"{place}.format"
        self._custom[name] = form
        self._show(name, _described(description or "", form), _TEXT_INPUT)

    def is_custom(self, name: str) -> bool:
        """Whether the tool takes text."""
        return name in self._custom

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

    def check_named(self, name: str, param: str, field: str) -> None:
        """Raise InvalidRequest for a name that no tool of the request field has."""
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
        """The tools, of which those `allowed` may be called."""
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


def check_tools_size(tools: Any, param: str) -> None:
    """Raise InvalidRequest if the JSON of the tools exceeds MAX_TOOLS_BYTES."""
    size = len(client_json(tools))
    if size > MAX_TOOLS_BYTES:
        message = f"Invalid '{param}': it has {size} bytes of JSON; the limit is {MAX_TOOLS_BYTES}."
        raise InvalidRequest(message, param=param)
