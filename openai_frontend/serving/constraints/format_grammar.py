"""The form that a request asks of its answer, as a part of a larger grammar."""

from collections.abc import Mapping
from typing import Any, cast

import orjson

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.constraints import formats
from openai_frontend.serving.constraints.formats import Format
from openai_frontend.serving.constraints.response_format import RequestedFormat


def format_grammar(form: RequestedFormat) -> Format:
    """The form within a structural tag."""
    asked = form.structured
    if asked.disable_any_whitespace or asked.whitespace_pattern is not None:
        raise _not_composed(form, "a rule for whitespace")
    if asked.json is not None:
        # answer_form has read what came as text
        return formats.json_value(cast("Mapping[str, Any] | bool", asked.json))
    if asked.json_object:
        return formats.json_value({"type": "object"})
    if asked.regex is not None:
        return formats.regex(asked.regex)
    if asked.choice is not None:
        return formats.either(*map(formats.const, asked.choice))
    if asked.grammar is not None:
        return formats.grammar(asked.grammar)
    return _within_structural_tag(form)


def _within_structural_tag(form: RequestedFormat) -> Format:
    given = _parsed(form)
    inner = given.get("format")
    if not isinstance(inner, dict):
        raise _not_composed(form, "a structural tag without 'format'")
    return inner


def _parsed(form: RequestedFormat) -> Mapping[str, object]:
    try:
        given = orjson.loads(form.structured.structural_tag or "")
    except orjson.JSONDecodeError as error:
        message = f"Invalid '{form.place}': the text is not JSON: {error}."
        raise InvalidRequest(message, param=form.place) from None
    if not isinstance(given, Mapping):
        message = f"Invalid '{form.place}': expected an object."
        raise InvalidRequest(message, param=form.place)
    return given


def _not_composed(form: RequestedFormat, what: str) -> InvalidRequest:
    message = (
        f"Unsupported parameter: '{form.param}': {what} cannot be combined with tools or reasoning."
    )
    return InvalidRequest(message, param=form.param, code="unsupported_parameter")
