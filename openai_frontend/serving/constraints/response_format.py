"""The requested output format: OpenAI's `response_format`, vLLM's `structured_outputs` and
`guided_*`, SGLang's `regex` and `ebnf`.

Validates a schema only as far as `check_schema` does; the engine compiles it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import orjson

from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import StructuredOutputs
from openai_frontend.serving.constraints import formats
from openai_frontend.serving.constraints.formats import Format
from openai_frontend.serving.constraints.json_schema import check_schema
from openai_frontend.serving.constraints.schema_reduction import REDUCTIONS
from openai_frontend.serving.request.client_json import read_client_json
from schemas.response_format import MAX_CONSTRAINT_BYTES
from schemas.sampling import SamplingFields

_OPTIONS = ("disable_any_whitespace", "whitespace_pattern")
_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
# vLLM's names of backends: accepted, but the engine's settings choose.
_BACKENDS = ("auto", "xgrammar", "guidance", "outlines", "lm-format-enforcer")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedFormat:
    """The output format of one request."""

    structured: StructuredOutputs
    param: str  # the request field
    place: str  # the path of the schema or grammar
    reducible: bool = False  # a schema that need not be enforced completely

    def reduced(self, step: int) -> "RequestedFormat":
        """The format after the first `step` reductions of its schema."""
        if not step or not isinstance(self.structured.json, Mapping):
            return self
        schema = REDUCTIONS[step](self.structured.json)
        return replace(self, structured=StructuredOutputs(json=schema))


def requested_format(request: SamplingFields) -> RequestedFormat | None:
    """The request's output format; None if any text is allowed. Raises InvalidRequest for two
    formats.
    """
    requested: RequestedFormat | None = None
    for field in FORM_FIELDS:
        value = getattr(request, field)
        form = None if value is None else _FIELDS[field](field, value)
        if form is None:
            continue
        if requested is not None:
            message = f"'{field}' and '{requested.param}' cannot be used together."
            raise InvalidRequest(message, param=field)
        requested = form
    return _with_guided_options(request, requested)


def _with_guided_options(
    request: SamplingFields, requested: RequestedFormat | None
) -> RequestedFormat | None:
    backend, pattern = request.guided_decoding_backend, request.guided_whitespace_pattern
    if backend is not None and backend not in _BACKENDS:
        known = ", ".join(f"'{each}'" for each in _BACKENDS)
        message = f"Invalid value: '{backend}'. Supported values are: {known}."
        raise InvalidRequest(message, param="guided_decoding_backend")
    if pattern is None:
        return requested
    if requested is None or requested.param != "guided_json":
        message = "'guided_whitespace_pattern' can only be used with 'guided_json'."
        raise InvalidRequest(message, param="guided_whitespace_pattern")
    structured = StructuredOutputs(json=requested.structured.json, whitespace_pattern=pattern)
    param = "guided_whitespace_pattern"  # of the two, the one that an engine may not support
    return RequestedFormat(structured=structured, param=param, place=param)


def _of_response_format(field: str, response_format: Mapping[str, Any]) -> RequestedFormat | None:
    _check_size(response_format, field)
    if response_format.get("schema") is not None:
        place = "response_format.schema"
        message = f"Unsupported parameter: '{place}'. Use the type 'json_schema' for a schema."
        raise InvalidRequest(message, param=place, code="unsupported_parameter")
    kind = response_format["type"]
    for name in _MEMBERS.keys() & response_format.keys():
        if _MEMBERS[name] != kind and response_format[name] is not None:
            place = f"{field}.{name}"
            message = f"Unsupported parameter: '{place}' cannot be used with the type '{kind}'."
            raise InvalidRequest(message, param=place, code="unsupported_parameter")
    structured = _FORMATS[kind](response_format)
    if structured is None:
        return None
    place = field if structured.json is None else _SCHEMA_PLACE
    strict = structured.json is None or response_format["json_schema"].get("strict")
    return RequestedFormat(structured=structured, param=field, place=place, reducible=not strict)


def _of_structured_outputs(field: str, members: Mapping[str, Any]) -> RequestedFormat | None:
    values = _given(members)
    unknown = sorted(name for name in members.keys() - {*_KINDS, *_OPTIONS} if members[name])
    if not values and not unknown:
        return None
    kinds = [kind for kind in _KINDS if kind in values]
    if len(kinds) != 1:
        names = kinds or unknown  # of a misspelt name alone nothing would be constrained
        got = " and ".join(f"'{name[:64]}'" for name in names[:4]) or "none of them"
        message = f"Invalid '{field}': expected one of {_listed()}, but got {got}."
        raise InvalidRequest(message, param=field)
    _check_size(values, field)
    place = f"{field}.{kinds[0]}"
    if "json" in values:
        values["json"] = _schema(values["json"], place)
    return RequestedFormat(structured=StructuredOutputs(**values), param=field, place=place)


def _of_kind(kind: str) -> Callable[[str, Any], RequestedFormat]:
    """Reads a field that has only one kind of constraint."""

    def read(field: str, value: Any) -> RequestedFormat:
        _check_size(value, field)
        values = {kind: _schema(value, field) if kind == "json" else value}
        return RequestedFormat(structured=StructuredOutputs(**values), param=field, place=field)

    return read


def _given(structured_outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The known members that are set. `FieldPolicy` handles unknown ones."""
    values = {name: structured_outputs.get(name) for name in (*_KINDS, *_OPTIONS)}
    return {
        name: value for name, value in values.items() if value is not None and value is not False
    }


def _schema(value: Any, place: str) -> Any:
    schema = value
    if isinstance(value, str):
        try:
            schema = read_client_json(value)
        except ValueError as error:
            message = f"Invalid '{place}': the text is not valid JSON: {error}."
            raise InvalidRequest(message, param=place) from None
    check_schema(schema, place)
    if isinstance(schema, bool):  # engines take objects
        schema = {} if schema else {"not": {}}
    if schema is not value:  # integers within the text
        _check_size(schema, place)
    return schema


def _check_size(constraint: Any, param: str) -> None:
    # the engine compiles a copy for each choice
    try:
        size = len(orjson.dumps(constraint))
    except TypeError:
        message = f"Invalid '{param}': it contains an integer of more than 64 bits."
        raise InvalidRequest(message, param=param) from None
    if size > MAX_CONSTRAINT_BYTES:
        message = (
            f"Invalid '{param}': it has {size} bytes of JSON; the limit is {MAX_CONSTRAINT_BYTES}."
        )
        raise InvalidRequest(message, param=param)


def _listed() -> str:
    return ", ".join(f"'{kind}'" for kind in _KINDS)


# Constraints of `response_format` -> the type that has them
_MEMBERS = {
    "json_schema": "json_schema",
    **dict.fromkeys(("format", "structures", "triggers"), "structural_tag"),
}
_SCHEMA_PLACE = "response_format.json_schema.schema"


def _json_schema(response_format: Mapping[str, Any]) -> StructuredOutputs:
    schema = cast("Mapping[str, Any] | None", response_format["json_schema"].get("schema"))
    if schema is None:
        message = f"Missing required parameter: '{_SCHEMA_PLACE}'."
        raise InvalidRequest(message, param=_SCHEMA_PLACE, code="missing_required_parameter")
    check_schema(schema, _SCHEMA_PLACE)
    return StructuredOutputs(json=schema)


_FORMATS: Mapping[str, Callable[[Mapping[str, Any]], StructuredOutputs | None]] = {
    "text": lambda _: None,
    "json_object": lambda _: StructuredOutputs(json_object=True),
    "json_schema": _json_schema,
    "structural_tag": lambda form: StructuredOutputs(structural_tag=orjson.dumps(form).decode()),
}

# Fields that request a format. Of two in one request, the later one is rejected.
_FIELDS: Mapping[str, Callable[[str, Any], RequestedFormat | None]] = {
    "response_format": _of_response_format,
    "structured_outputs": _of_structured_outputs,
    "guided_json": _of_kind("json"),
    "guided_regex": _of_kind("regex"),
    "guided_choice": _of_kind("choice"),
    "guided_grammar": _of_kind("grammar"),
    "regex": _of_kind("regex"),
    "ebnf": _of_kind("grammar"),
}
FORM_FIELDS = tuple(_FIELDS)


def format_grammar(form: RequestedFormat) -> Format:
    """The requested format as part of a structural tag."""
    structured = form.structured
    if structured.disable_any_whitespace or structured.whitespace_pattern is not None:
        raise _not_composed(form, "a whitespace pattern")
    if structured.json is not None:
        # requested_format has parsed JSON text
        return formats.json_value(cast("Mapping[str, Any] | bool", structured.json))
    if structured.json_object:
        return formats.json_value({"type": "object"})
    if structured.regex is not None:
        return formats.regex(structured.regex)
    if structured.choice is not None:
        return formats.either(*map(formats.const, structured.choice))
    if structured.grammar is not None:
        return formats.grammar(structured.grammar)
    return _within_structural_tag(form)


def _within_structural_tag(form: RequestedFormat) -> Format:
    tag = _parsed(form)
    inner = tag.get("format")
    if not isinstance(inner, dict):
        raise _not_composed(form, "a structural tag without 'format'")
    return inner


def _parsed(form: RequestedFormat) -> Mapping[str, object]:
    try:
        tag = read_client_json(form.structured.structural_tag or "")
    except ValueError as error:
        message = f"Invalid '{form.place}': the text is not valid JSON: {error}."
        raise InvalidRequest(message, param=form.place) from None
    if not isinstance(tag, Mapping):
        message = f"Invalid '{form.place}': expected an object."
        raise InvalidRequest(message, param=form.place)
    _check_size(tag, form.param)
    return tag


def _not_composed(form: RequestedFormat, what: str) -> InvalidRequest:
    message = (
        f"Unsupported parameter: '{form.param}': {what} cannot be combined with tools or reasoning."
    )
    return InvalidRequest(message, param=form.param, code="unsupported_parameter")
