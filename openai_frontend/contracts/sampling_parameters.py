"""vLLM's SamplingParams as JSON: the tensor `sampling_parameters` of every backend of vLLM, and
the object that vLLM's own server reads. Never checks values.
"""

from dataclasses import fields
from operator import attrgetter
from typing import Any

import orjson

from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import SamplingParams, StructuredOutputs


class _Defaults:
    """A dataclass' fields with their defaults."""

    def __init__(self, kind: type[SamplingParams | StructuredOutputs]) -> None:
        self._names = [field.name for field in fields(kind)]
        self._defaults = [field.default for field in fields(kind)]
        self._values = attrgetter(*self._names)

    def changed(self, given: SamplingParams | StructuredOutputs) -> dict[str, Any]:
        """The fields that say something else, by name."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value, default in zip(
                self._names, self._values(given), self._defaults, strict=True
            )
            if value is not default and value != default
        }


_SAMPLING = _Defaults(SamplingParams)
_STRUCTURED = _Defaults(StructuredOutputs)


class SamplingParameters:
    """Encodes the parameters of one model's requests."""

    def __init__(self) -> None:
        # The choices of a request come one after the other and share their constraint, which may
        # be a large schema: it is encoded once (300 KB: 0.1 ms for each choice instead of 2).
        self._last: tuple[StructuredOutputs, orjson.Fragment] | None = None

    def encode(self, params: SamplingParams, *, lora_name: str | None = None) -> str:
        """JSON with the keys that differ from the defaults, which are the engine's own."""
        changed = _SAMPLING.changed(params)
        if lora_name is not None:
            changed["lora_name"] = lora_name
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


_OF_TENSORRT_LLM = ("beam_width", "length_penalty")


def fields_of(params: SamplingParams) -> dict[str, Any]:
    """What vLLM's server reads as `sampling_params`: the fields that differ from the engine's own
    defaults, and always `max_tokens`, which vLLM would take for 16.
    """
    # vLLM refuses some lists if they are empty
    changed = {name: value for name, value in _SAMPLING.changed(params).items() if value != []}
    for name in _OF_TENSORRT_LLM:
        changed.pop(name, None)
    if params.logprob_token_ids:  # in place of the likeliest
        changed.pop("logprobs", None)
    if params.structured_outputs is not None:
        changed["structured_outputs"] = _STRUCTURED.changed(params.structured_outputs)
    # An answer of no tokens reads the prompt, for which vLLM's server needs one.
    most = params.max_tokens
    return {**changed, "max_tokens": None if most is None else max(1, most)}


def _structured_outputs(structured: StructuredOutputs) -> str:
    """JSON within the JSON, where NVIDIA's backend wants a schema as an object, not as its text."""
    changed = _STRUCTURED.changed(structured)
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
