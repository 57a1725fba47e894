"""One grammar for one output: optional reasoning, then tool calls, text or the requested format.

Builds the grammar's description; the engine compiles it.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import orjson

from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import StructuredOutputs
from openai_frontend.parsing.output_format import OutputFormat
from openai_frontend.serving.constraints import formats, harmony, plugin
from openai_frontend.serving.constraints.arguments import SchemaArguments, allowed_functions
from openai_frontend.serving.constraints.calls import Calls, Functions, any_call, any_call_schema
from openai_frontend.serving.constraints.family_tags import JSON_TAGS, TAGS, CallForm
from openai_frontend.serving.constraints.formats import Format, Unconstrainable
from openai_frontend.serving.constraints.plugin import PluginConstraint
from openai_frontend.serving.constraints.reduced_constraints import ReducedConstraints
from openai_frontend.serving.constraints.response_format import (
    FORM_FIELDS,
    RequestedFormat,
    format_grammar,
    requested_format,
)
from openai_frontend.serving.request.sampling import NO_CONSTRAINT, Constraint
from openai_frontend.serving.request.tools import Tools
from schemas.response_format import MAX_TAG_CHARACTERS
from schemas.sampling import SamplingFields

_LONG_BYTES = 32 * 1024  # 0.6 us for each byte of a function's schema
_FORM_FIELDS = frozenset(FORM_FIELDS) | {"guided_whitespace_pattern", "guided_decoding_backend"}


def constraint(
    request: SamplingFields,
    tools: Tools,
    output_format: OutputFormat,
    *,
    reasoning_open: bool | None,
    supports_tags: bool = True,
) -> Constraint:
    """The request's constraint. `reasoning_open` says whether the prompt ends within reasoning;
    `supports_tags`, whether the model accepts structural tags and not only schemas.
    """
    return prepare_constraint(
        request, tools, output_format, reasoning_open=reasoning_open, supports_tags=supports_tags
    )()


def prepare_constraint(
    request: SamplingFields,
    tools: Tools,
    output_format: OutputFormat,
    *,
    reasoning_open: bool | None,
    supports_tags: bool = True,
) -> Callable[[], Constraint]:
    """Run the plug-ins now, on the event loop. The returned function builds the constraint, in any
    thread.
    """
    is_constrained = not _FORM_FIELDS.isdisjoint(request.model_fields_set)
    if not is_constrained and not tools.in_use and not plugin.installed():
        return _no_constraint
    plugged = plugin.plugin_constraint(request)

    def build() -> Constraint:
        form = _form(request if is_constrained else None, plugged)
        builder = _GrammarBuilder(output_format, reasoning_open, supports_tags)
        result = _constraint_of(form, tools, builder)
        if steps := _reducible(form, tools):
            fallback = ReducedConstraints(
                steps, lambda steps: _constraint_of(form, tools, builder.reduced(steps))
            )
            result = replace(result, fallback=fallback)
        if not plugged.extra_args:
            return result
        return replace(result, extra_args=plugged.extra_args)

    return build


def is_slow_to_build(tools: Tools) -> bool:
    """Whether the grammar of the calls takes more than about 20 ms to build."""
    if not tools.in_use:
        return False
    if tools.choice != "required" and not _narrowed(tools) and not _enforced_functions(tools):
        return False
    try:
        return len(orjson.dumps(tools.functions)) > _LONG_BYTES
    except orjson.JSONEncodeError:  # nested too deeply, which `_tag` refuses
        return True


def _no_constraint() -> Constraint:
    return NO_CONSTRAINT


def _form(request: SamplingFields | None, plugged: PluginConstraint) -> RequestedFormat | None:
    """The output format: the request's own, or a plug-in's."""
    own = None if request is None else requested_format(request)
    if plugged.structured is None:
        return own
    if own is not None:
        message = (
            f"'{own.param}' cannot be used: the server's '{plugged.by}' constrains the answer."
        )
        raise InvalidRequest(message, param=own.param)
    # No request field asks for it: a model that does not support it is a configuration error.
    return RequestedFormat(structured=plugged.structured, param="model", place="model")


def _reducible(form: RequestedFormat | None, tools: Tools) -> dict[str, int]:
    """The request fields with schemas that need not be enforced completely, with the step of
    `REDUCTIONS` that they begin with.
    """
    places = {}
    if form is not None and form.reducible and tools.choice != "required":
        places[form.place] = 0
    if tools.choice == "required":
        loose = tools.allowed - tools.strict - tools.custom.keys()
        places |= dict.fromkeys((tools.places[name] for name in loose), 1)
    return places


def _constraint_of(
    form: RequestedFormat | None, tools: Tools, builder: "_GrammarBuilder"
) -> Constraint:
    if not tools.in_use:
        return NO_CONSTRAINT if form is None else builder.of(form)
    if tools.choice == "required":
        return builder.of_calls(tools)
    return builder.of_calls_or(form, tools)


class _GrammarBuilder:
    """Builds grammars for one model's output to one prompt."""

    def __init__(
        self, output_format: OutputFormat, reasoning_open: bool | None, supports_tags: bool
    ) -> None:
        self._output_format = output_format
        self._supports_tags = supports_tags
        self._open = reasoning_open
        self._frames = harmony.frames(output_format)
        self._tags = _tags(output_format)
        self._steps: Mapping[str, int] = {}

    def reduced(self, steps: Mapping[str, int]) -> "_GrammarBuilder":
        """The builder of the same kind of grammar, which the parser expects, with schemas reduced
        by so many steps; after this builder's own grammar.
        """
        other = copy(self)
        other._steps = steps
        return other

    def of(self, form: RequestedFormat) -> Constraint:
        """The format alone, after optional reasoning."""
        form = form.reduced(self._steps.get(form.place, 0))
        if not self._frames and self._thinking(form.param) is None:
            names = {"structured_outputs": form.place}
            return Constraint(structured=form.structured, param=form.param, field_names=names)
        content = format_grammar(form)
        whole = harmony.message(content) if self._frames else content
        schemas = [(form.place, form.structured.json)]
        return self._tag_constraint(whole, form.param, schemas, form.place)

    def of_calls(self, tools: Tools) -> Constraint:
        """At least one call."""
        functions = allowed_functions(tools, self._steps)
        if self._frames:
            return self._calls_constraint(harmony.calls(functions), functions, tools)
        one = not tools.parallel or len(functions) == 1  # a named function is called only once
        if not self._supports_tags and (schema := self._as_schema(tools, functions, one=one)):
            return schema
        self._supports_tags = True
        for forms in self._tags:
            with contextlib.suppress(Unconstrainable):
                whole = Calls(forms, functions, one).only()
                self._tags = [forms]
                return self._calls_constraint(whole, functions, tools)
        self._tags = []
        return self._as_json(tools, functions, one=one)  # whatever the model was trained on

    def of_calls_or(self, form: RequestedFormat | None, tools: Tools) -> Constraint:
        """Calls, or else the format; without a format any text, which may have calls in it."""
        enforced = _enforced_functions(tools)
        if form is None and not enforced and not (self._tags and _narrowed(tools)):
            return NO_CONSTRAINT
        functions = allowed_functions(tools, self._steps)
        form = None if form is None else form.reduced(self._steps.get(form.place, 0))
        whole = self._calls_or(None if form is None else format_grammar(form), functions, tools)
        if whole is None:
            if form is None and not enforced:
                return NO_CONSTRAINT  # the parser enforces what the request narrows
            raise _not_with(form, tools)
        calls = self._calls_constraint(whole, functions, tools, form)
        return calls if enforced or form is not None else replace(calls, needed=False)

    def _calls_or(
        self, content: Format | None, functions: Functions, tools: Tools
    ) -> Format | None:
        """None if the family's calls cannot be distinguished from content."""
        if self._frames:
            return harmony.calls_or(functions, content or formats.any_text())
        for forms in self._tags:
            calls = Calls(forms, functions, not tools.parallel)
            with contextlib.suppress(Unconstrainable):
                if content is None:
                    return calls.within_text()
                return formats.either(calls.only(), content)
        return None

    def _as_json(self, tools: Tools, functions: Functions, *, one: bool) -> Constraint:
        if len(functions) == 1:
            (name,) = functions
            form, choice = functions[name].form("json"), Constraint(forced=name)
        else:
            form, choice = any_call(functions, one=one), Constraint(any_call=True)
        constraint = self._calls_constraint(form, functions, tools)
        return replace(constraint, forced=choice.forced, any_call=choice.any_call)

    def _as_schema(self, tools: Tools, functions: Functions, *, one: bool) -> Constraint | None:
        """For a model that accepts only a schema; None if a schema cannot express it."""
        known = {
            name: each for name, each in functions.items() if isinstance(each, SchemaArguments)
        }
        param = _calls_param(tools)
        if len(known) < len(functions) or self._thinking(param) is not None:
            return None
        names = {"structured_outputs": param}
        if len(known) == 1:
            ((name, arguments),) = known.items()
            structured = StructuredOutputs(json=arguments.schema)
            return Constraint(structured=structured, forced=name, param=param, field_names=names)
        schema = any_call_schema(known, one=one)
        if schema is None:
            return None
        structured = StructuredOutputs(json=schema)
        return Constraint(structured=structured, any_call=True, param=param, field_names=names)

    def _calls_constraint(
        self, whole: Format, functions: Functions, tools: Tools, form: RequestedFormat | None = None
    ) -> Constraint:
        schemas = [
            part
            for name, arguments in functions.items()
            if isinstance(arguments, SchemaArguments)
            for part in arguments.places(tools.schema_place(name))
        ]
        if form is not None:
            schemas.append((form.place, form.structured.json))
        param = _calls_param(tools) if form is None else form.param
        return self._tag_constraint(whole, param, schemas, param)

    def _tag_constraint(
        self, whole: Format, param: str, schemas: Sequence[tuple[str, Any]], place: str
    ) -> Constraint:
        before = None if self._frames else self._thinking(param)
        if before is not None:
            whole = formats.sequence(before, whole)
        structured = StructuredOutputs(structural_tag=_tag(whole, param, place))
        names = {"structured_outputs": place, **formats.field_names(whole, schemas, place)}
        return Constraint(structured=structured, param=param, field_names=names)

    def _thinking(self, param: str) -> Format | None:
        try:
            return _reasoning_grammar(self._output_format, self._open)
        except Unconstrainable as unknown:
            message = f"Unsupported parameter: '{param}' is not supported with this model: "
            raise InvalidRequest(
                f"{message}{unknown}.", param=param, code="unsupported_parameter"
            ) from None


def _tag(whole: Format, param: str, place: str) -> str:
    try:
        tag = formats.structural_tag(whole)
    except orjson.JSONEncodeError as error:  # JSON sent as text may be nested too deeply
        message = f"Invalid '{place}': it cannot be converted to a grammar: {error}."
        raise InvalidRequest(message, param=place) from None
    if len(tag) > MAX_TAG_CHARACTERS:
        message = f"Invalid '{param}': the grammar is too large. Use fewer or simpler constraints."
        raise InvalidRequest(message, param=param)
    return tag


def _tags(output_format: OutputFormat) -> list[tuple[CallForm, ...]]:
    """The forms in which the model was trained to write calls, then others that the parser reads;
    none if unknown.
    """
    family = output_format.family
    name = family.name.partition("+")[0] if family.tools is not None else ""
    return [table[name] for table in (TAGS, JSON_TAGS) if name in table]


def _enforced_functions(tools: Tools) -> frozenset[str]:
    """Functions whose arguments must match, even if the model chooses whether to call."""
    grammars = (name for name, custom in tools.custom.items() if custom.type == "grammar")
    return (tools.strict | frozenset(grammars)) & tools.allowed


def _narrowed(tools: Tools) -> bool:
    """Whether calls are limited in a way that the prompt does not tell the model."""
    return not tools.parallel or tools.allowed != tools.functions.keys()


def _calls_param(tools: Tools) -> str:
    """The request field that requires the grammar for calls."""
    if tools.choice == "required":
        return "function_call" if tools.legacy else "tool_choice"
    enforced = _enforced_functions(tools)
    if enforced:
        return _strict_param(tools, min(enforced))
    return tools.param if tools.parallel or tools.legacy else "parallel_tool_calls"


def _strict_param(tools: Tools, name: str) -> str:
    """The request field that makes this function's arguments strict."""
    place = tools.places[name].removesuffix(".parameters")
    return f"{place}.strict" if name in tools.strict else place


def _not_with(form: RequestedFormat | None, tools: Tools) -> InvalidRequest:
    if form is not None:
        place, reason = form.param, "it cannot be combined with tools"
    else:
        place = _strict_param(tools, min(_enforced_functions(tools)))
        reason = "calls can only be constrained if 'tool_choice' requires one"
    message = f"Unsupported parameter: '{place}' is not supported with this model: {reason}."
    return InvalidRequest(message, param=place, code="unsupported_parameter")


def _reasoning_grammar(output_format: OutputFormat, reasoning_open: bool | None) -> Format | None:
    """Reasoning up to its end marker; None for a model without reasoning.

    If the prompt ends within reasoning, the model continues it. Otherwise a model that writes the
    start marker itself may do so, or answer directly.
    """
    reasoning = output_format.family.reasoning
    if reasoning is None:
        if reasoning_open and output_format.reasoning:
            raise Unconstrainable("its reasoning parser does not define an end marker")
        return None
    if reasoning_open is None:
        reasoning_open = reasoning.starts_inside
    if reasoning_open:
        begin = ""
    elif reasoning.starts_inside:  # and the prompt has closed it
        return None
    else:
        begin = reasoning.start
    thought = formats.tag(begin, formats.any_text(), reasoning.end)
    whole = formats.sequence(thought, formats.GAP)
    return whole if reasoning_open else formats.optional(whole)
