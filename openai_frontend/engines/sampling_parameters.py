"""Reads sampling parameters from JSON in a tensor, with the types and bounds of the HTTP API's
fields.
"""

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    TypeAdapter,
    ValidationError,
    create_model,
)

from openai_frontend.generation import SamplingParams, StructuredOutputs
from openai_frontend.json_limits import TooManyParts, check_json_size
from schemas.completions import CompletionRequest
from schemas.response_format import MAX_CONSTRAINT_BYTES, MAX_TAG_CHARACTERS, StructuredOutputsParam
from schemas.sampling import MAX_BAD_WORDS_CHARACTERS


def read_object(text: bytes, name: str, max_bytes: int) -> dict[str, Any]:
    """Parse a JSON object. Raises ValueError, naming the tensor or field `name`."""
    if len(text) > max_bytes:
        raise ValueError(f"{name}: it has {len(text)} bytes of JSON; the limit is {max_bytes}")
    try:
        check_json_size(text)
        document = orjson.loads(text)
    except TooManyParts as error:
        raise ValueError(f"{name}: {error}") from None
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{name}: not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"{name}: not a JSON object")
    return document


NAME = "sampling_parameters"
# Without the constraint. Twice as much as the bounds of the fields allow together; the longest are
# stop strings (96 KiB of escaped characters), vllm_xargs and logit_bias.
MAX_BYTES = 512 * 1024
# A structural tag is JSON within JSON within JSON: schemas grow by half, because they are full of
# quotes.
_MAX_BYTES_WITH_CONSTRAINT = MAX_BYTES + 2 * MAX_TAG_CHARACTERS

_CONSTRAINT = "structured_outputs"
# SamplingParams field -> HTTP API field with the same type
_FIELDS = {"extra_args": "vllm_xargs", "beam_width": "n"}
_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
_MEMBERS = frozenset(field.name for field in fields(StructuredOutputs))
# Parameters that are lists or objects. Engines make their own object of a constraint, and `stop` is
# a tuple.
CONTAINERS = (
    "allowed_token_ids",
    "bad_words",
    "extra_args",
    "logit_bias",
    "logprob_token_ids",
    "repetition_detection",
    "stop_token_ids",
)
_WITHOUT_LENGTH = {"json", "choice"}  # members whose types do not limit their size


def _with_numbers(value: Any) -> Any:
    """JSON keys are strings: turns token ids back into numbers."""
    if not isinstance(value, dict):
        return value
    return {int(key) if _is_number(key) else key: value[key] for key in value}


def _is_number(key: str) -> bool:
    """Whether the key is a token id in its only spelling: not `01`."""
    return key.isdecimal() and len(key) <= 10 and str(int(key)) == key


_MOST_DIGITS = 32


def _from_text(value: Any) -> Any:
    """genai-perf writes numbers and booleans as JSON strings; NVIDIA's backend reads them."""
    if not isinstance(value, str) or len(value) > _MOST_DIGITS:
        return value
    try:
        read = orjson.loads(value.lower())
    except orjson.JSONDecodeError:
        return value
    return read if isinstance(read, int | float) else value


def _is_scalar(annotation: Any) -> bool:
    """Whether a field takes only numbers or booleans, or none of them."""
    if get_origin(annotation) is Annotated:
        return _is_scalar(get_args(annotation)[0])
    kinds = get_args(annotation)
    if kinds:
        return get_origin(annotation) in (Union, UnionType) and all(map(_is_scalar, kinds))
    return annotation in (int, float, bool, type(None))


def _wire_model() -> type[BaseModel]:
    """The fields of SamplingParams with the types of the HTTP API's fields."""
    types: dict[str, Any] = {
        field.name: CompletionRequest.model_fields[_FIELDS.get(field.name, field.name)].annotation
        for field in fields(SamplingParams)
        if field.name != _CONSTRAINT
    }
    biases: Any = types["logit_bias"]
    types["logit_bias"] = Annotated[biases, BeforeValidator(_with_numbers)]
    types["lora_name"] = str | None
    types = {
        name: Annotated[kind, BeforeValidator(_from_text)] if _is_scalar(kind) else kind
        for name, kind in types.items()
    }
    keys: dict[str, Any] = {name: (kind, None) for name, kind in types.items()}
    return create_model(NAME, __config__=_STRICT, **keys)


_PARAMETERS = _wire_model()
_CONSTRAINTS = TypeAdapter(StructuredOutputsParam)


def read_text(text: bytes) -> tuple[SamplingParams, str | None]:
    """Return the parameters and the name of the LoRA adapter they select.

    Raises ValueError, naming the parameter. Requests with the same text, if it is not long, share
    parameters without lists or objects, which an engine may change, beside `stop` and a constraint.
    """
    has_containers = b"[" in text or text.find(b"{", 1) >= 0
    is_plain = not has_containers or _CONSTRAINT_NAME in text or b'"stop"' in text
    if not is_plain or len(text) > MOST_SHARED_BYTES:
        return _read_text(text)
    found = _read_short_text(text)
    if has_containers and any(getattr(found[0], name) for name in CONTAINERS):
        return _read_text(text)
    return found


def _read_text(text: bytes) -> tuple[SamplingParams, str | None]:
    given = read_object(text, NAME, _MAX_BYTES_WITH_CONSTRAINT)
    if len(text) > MAX_BYTES:
        beside = {name: value for name, value in given.items() if name != _CONSTRAINT}
        if (size := len(orjson.dumps(beside))) > MAX_BYTES:
            raise ValueError(
                f"{NAME}: at most {MAX_BYTES} bytes of JSON without {_CONSTRAINT}, not {size}"
            )
    return read(given)


# Clients repeat their parameters, with their schemas: 0.4 us instead of 4, or of 130
MOST_SHARED_BYTES = 8192
_CONSTRAINT_NAME = f'"{_CONSTRAINT}"'.encode()
_read_short_text = lru_cache(maxsize=256)(_read_text)


def read(given: Mapping[str, Any]) -> tuple[SamplingParams, str | None]:
    """Like `read_text`, for parameters that are already parsed."""
    beside = dict(given)
    constraint = beside.pop(_CONSTRAINT, None)
    try:
        read = _PARAMETERS.model_validate(beside)
    except ValidationError as error:
        raise ValueError(f"{NAME}: {_fault(error)}") from None
    values = {name: getattr(read, name) for name in read.model_fields_set}
    values = {name: value for name, value in values.items() if value is not None}
    lora_name = values.pop("lora_name", None)
    if "stop" in values:
        stop = values["stop"]
        values["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    if "repetition_detection" in values:
        values["repetition_detection"] = values["repetition_detection"].model_dump()
    _check_bad_words(values.get("bad_words", ()))
    if constraint is not None:
        values[_CONSTRAINT] = _structured_outputs(constraint)
    return SamplingParams(**values), lora_name


def _check_bad_words(words: list[str]) -> None:
    if (characters := sum(map(len, words))) > MAX_BAD_WORDS_CHARACTERS:
        most = f"at most {MAX_BAD_WORDS_CHARACTERS} characters in total"
        raise ValueError(f"{NAME}: bad_words: {most}, not {characters}")


def _structured_outputs(given: Any) -> StructuredOutputs:
    """From an object, or from JSON within the JSON, as in NVIDIA's backend."""
    name = f"{NAME}: {_CONSTRAINT}"
    if isinstance(given, str):
        given = read_object(given.encode(), name, _MAX_BYTES_WITH_CONSTRAINT)
    if isinstance(given, dict) and (unknown := given.keys() - _MEMBERS):
        raise ValueError(f"{name}: unknown member {min(unknown)[:64]!r}")
    try:
        checked: dict[str, Any] = {**_CONSTRAINTS.validate_python(given)}
    except ValidationError as error:
        raise ValueError(f"{name}: {_fault(error)}") from None
    for kind in _WITHOUT_LENGTH & checked.keys():
        if (size := len(orjson.dumps(checked[kind]))) > MAX_CONSTRAINT_BYTES:
            raise ValueError(f"{name}: {kind}: at most {MAX_CONSTRAINT_BYTES} bytes, not {size}")
    return StructuredOutputs(**{key: value for key, value in checked.items() if value is not None})


def _fault(error: ValidationError) -> str:
    """The first error. For a union, the error of the member with the value's own type."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    fault = min(faults, key=lambda each: each["type"].endswith("_type"))
    place = [str(step)[:64] for step in fault["loc"] if not str(step).startswith("<")]
    return ": ".join([*place[:2], fault["msg"]])
