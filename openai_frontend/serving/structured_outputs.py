"""What an answer must be: OpenAI's `response_format` or vLLM's `structured_outputs`, as one form.

Never looks into a schema or a grammar: the engine compiles it, and refuses what it cannot take.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import orjson

from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import StructuredOutputs
from schemas.sampling import SamplingFields

MAX_CONSTRAINT_BYTES = 256 * 1024
_OPTIONS = ("disable_any_whitespace", "whitespace_pattern")
_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


def structured_outputs(request: SamplingFields) -> StructuredOutputs | None:
    """The one constraint on the answer; None where any text will do."""
    of_format = _of_response_format(request.response_format)
    given = _given(request.structured_outputs or {})
    if not given:
        return of_format
    if of_format is not None:
        message = "'structured_outputs' and 'response_format' cannot be used together."
        raise InvalidRequest(message, param="structured_outputs")
    return _of_structured_outputs(given)


def _of_response_format(response_format: Mapping[str, Any] | None) -> StructuredOutputs | None:
    if response_format is None:
        return None
    _check_size(response_format, "response_format")
    if "schema" in response_format:
        place = "response_format.schema"
        message = f"Unsupported parameter: '{place}'. Use the type 'json_schema' for a schema."
        raise InvalidRequest(message, param=place, code="unsupported_parameter")
    return _FORMATS[response_format["type"]](response_format)


def _of_structured_outputs(given: dict[str, Any]) -> StructuredOutputs:
    kinds = [kind for kind in _KINDS if kind in given]
    if len(kinds) != 1:
        got = "none of them" if not kinds else " and ".join(f"'{kind}'" for kind in kinds)
        message = f"Invalid 'structured_outputs': expected one of {_listed()}, but got {got}."
        raise InvalidRequest(message, param="structured_outputs")
    _check_size(given, "structured_outputs")
    if isinstance(given.get("json"), str):
        given["json"] = _parsed(given["json"])
    return StructuredOutputs(**given)


def _given(structured_outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The known members that say something; the others are the policy for unknown fields'."""
    values = {name: structured_outputs.get(name) for name in (*_KINDS, *_OPTIONS)}
    return {
        name: value for name, value in values.items() if value is not None and value is not False
    }


def _parsed(schema: str) -> Any:
    try:
        return orjson.loads(schema)
    except orjson.JSONDecodeError as error:
        message = f"Invalid 'structured_outputs.json': the text is not JSON: {error}."
        raise InvalidRequest(message, param="structured_outputs.json") from None


def _check_size(constraint: Any, param: str) -> None:
    """The engine gets a copy for each choice, and compiles it."""
    size = len(orjson.dumps(constraint))
    if size > MAX_CONSTRAINT_BYTES:
        message = f"Invalid '{param}': at most {MAX_CONSTRAINT_BYTES} bytes of JSON, not {size}."
        raise InvalidRequest(message, param=param)


def _listed() -> str:
    return ", ".join(f"'{kind}'" for kind in _KINDS)


def _json_schema(response_format: Mapping[str, Any]) -> StructuredOutputs:
    schema = cast("Mapping[str, Any] | None", response_format["json_schema"].get("schema"))
    if schema is None:
        place = "response_format.json_schema.schema"
        message = f"Missing required parameter: '{place}'."
        raise InvalidRequest(message, param=place, code="missing_required_parameter")
    return StructuredOutputs(json=schema)


_FORMATS: Mapping[str, Callable[[Mapping[str, Any]], StructuredOutputs | None]] = {
    "text": lambda _: None,
    "json_object": lambda _: StructuredOutputs(json_object=True),
    "json_schema": _json_schema,
    "structural_tag": lambda form: StructuredOutputs(structural_tag=orjson.dumps(form).decode()),
}
