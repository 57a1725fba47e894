"""The tensor `sampling_parameters` as JSON text, for every backend of vLLM. Never checks values."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import orjson

from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import SamplingParams, StructuredOutputs

_SAMPLING_DEFAULTS = {field.name: field.default for field in fields(SamplingParams)}
_STRUCTURED_DEFAULTS = {field.name: field.default for field in fields(StructuredOutputs)}


class SamplingParameters:
    """Encodes the parameters of one model's requests."""

    def __init__(self) -> None:
        # The choices of a request come one after the other and share their constraint, which may
        # be a large schema: it is encoded once (300 KB: 0.1 ms for each choice instead of 2).
        self._last: tuple[StructuredOutputs, orjson.Fragment] | None = None

    def encode(self, params: SamplingParams) -> str:
        """JSON with the keys that differ from the defaults, which are the engine's own."""
        changed = _changed(params, _SAMPLING_DEFAULTS)
        if params.structured_outputs is not None:
            changed["structured_outputs"] = self._constraint(params.structured_outputs)
        try:
            return orjson.dumps(changed, option=orjson.OPT_NON_STR_KEYS).decode()
        except orjson.JSONEncodeError as error:  # of numbers: it takes 64 bits
            raise InvalidRequest(f"The sampling parameters cannot be sent: {error}.") from None

    def _constraint(self, structured: StructuredOutputs) -> orjson.Fragment:
        if self._last is None or self._last[0] is not structured:
            self._last = structured, orjson.Fragment(orjson.dumps(_structured_outputs(structured)))
        return self._last[1]


def _structured_outputs(structured: StructuredOutputs) -> str:
    """JSON within the JSON, where NVIDIA's backend wants a schema as an object, not as its text."""
    changed = _changed(structured, _STRUCTURED_DEFAULTS)
    if isinstance(structured.json, str):
        changed["json"] = _embeddable(structured.json)
    try:
        return orjson.dumps(changed).decode()
    except orjson.JSONEncodeError as error:
        raise _refusal(str(error)) from None


def _embeddable(text: str) -> orjson.Fragment:
    """The text as it is, once it is known to be one JSON value and not the start of a second."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise _refusal(f"json is not JSON: {error}") from None
    return orjson.Fragment(text)


def _refusal(reason: str) -> InvalidRequest:
    message = f"Invalid 'structured_outputs': {reason}."
    return InvalidRequest(message, param="structured_outputs")


def _changed(values: Any, defaults: Mapping[str, Any]) -> dict[str, Any]:
    told = {name: getattr(values, name) for name in defaults}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in told.items()
        if value != defaults[name]
    }
