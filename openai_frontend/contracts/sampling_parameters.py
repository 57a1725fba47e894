"""vLLM's SamplingParams as JSON, for the tensor `sampling_parameters` and for vLLM's own server.

Does not check values.
"""

from dataclasses import fields
from operator import attrgetter
from typing import Any

import orjson

from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import SamplingParams, StructuredOutputs


class _Defaults:
    """A dataclass's fields with their defaults."""

    def __init__(self, kind: type[SamplingParams | StructuredOutputs]) -> None:
        self._names = [field.name for field in fields(kind)]
        self._defaults = [field.default for field in fields(kind)]
        self._values = attrgetter(*self._names)

    def changed(self, params: SamplingParams | StructuredOutputs) -> dict[str, Any]:
        """The fields that differ from their defaults, by name."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value, default in zip(
                self._names, self._values(params), self._defaults, strict=True
            )
            if value is not default and value != default
        }


_SAMPLING = _Defaults(SamplingParams)
_STRUCTURED = _Defaults(StructuredOutputs)


class SamplingParameters:
    """Encodes the sampling parameters of one model's requests."""

    def __init__(self) -> None:
        # The choices of a request come in sequence and share their constraint, which can be a large
        # schema, so it is encoded once (300 KB: 0.1 ms for each choice instead of 2 ms).
        self._last: tuple[StructuredOutputs, orjson.Fragment] | None = None

    def encode(self, params: SamplingParams, *, lora_name: str | None = None) -> str:
        """JSON with the fields that differ from the engine's defaults."""
        changed = _SAMPLING.changed(params)
        if lora_name is not None:
            changed["lora_name"] = lora_name
        if params.structured_outputs is not None:
            changed["structured_outputs"] = self._constraint(params.structured_outputs)
        try:
            return orjson.dumps(changed, option=orjson.OPT_NON_STR_KEYS).decode()
        except orjson.JSONEncodeError as error:  # numbers beyond 64 bits
            raise InvalidRequest(f"Invalid sampling parameters: {error}.") from None

    def _constraint(self, structured: StructuredOutputs) -> orjson.Fragment:
        if self._last is None or self._last[0] is not structured:
            self._last = structured, orjson.Fragment(orjson.dumps(_structured_outputs(structured)))
        return self._last[1]


_OF_TENSORRT_LLM = ("beam_width", "length_penalty")


def fields_of(params: SamplingParams) -> dict[str, Any]:
    """The `sampling_params` of vLLM's server: fields that differ from the engine's defaults, and
    always `max_tokens`, whose default there is 16.
    """
    # vLLM rejects some lists if they are empty
    changed = {name: value for name, value in _SAMPLING.changed(params).items() if value != []}
    for name in _OF_TENSORRT_LLM:
        changed.pop(name, None)
    if params.logprob_token_ids:  # instead of the most likely tokens
        changed.pop("logprobs", None)
    if params.structured_outputs is not None:
        changed["structured_outputs"] = _STRUCTURED.changed(params.structured_outputs)
    # max_tokens 0 only processes the prompt, for which vLLM's server needs 1.
    limit = params.max_tokens
    return {**changed, "max_tokens": None if limit is None else max(1, limit)}


def _structured_outputs(structured: StructuredOutputs) -> str:
    """The constraint as JSON. NVIDIA's backend needs a schema as an object, not as text."""
    changed = _STRUCTURED.changed(structured)
    if isinstance(structured.json, str):
        changed["json"] = _embeddable(structured.json)
    try:
        return orjson.dumps(changed).decode()
    except orjson.JSONEncodeError as error:
        raise _refusal(str(error)) from None


def _embeddable(text: str) -> orjson.Fragment:
    """The text unchanged, after a check that it is exactly one JSON value."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise _refusal(f"json is not JSON: {error}") from None
    return orjson.Fragment(text)


def _refusal(reason: str) -> InvalidRequest:
    message = f"Invalid 'structured_outputs': {reason}."
    return InvalidRequest(message, param="structured_outputs")
