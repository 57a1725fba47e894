"""OpenAI's sampling fields as vLLM's SamplingParams, and the token budget of the output."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import orjson

from openai_frontend.errors import ContextLengthExceeded, InvalidRequest
from openai_frontend.generation import (
    RESERVED_ARGS,
    ConstraintFallback,
    SamplingParams,
    StructuredOutputs,
)
from openai_frontend.prompting.tokenizer import Truncation
from openai_frontend.serving.admission.model import Describes
from schemas.sampling import INT64_MAX, MAX_BAD_WORDS_CHARACTERS, MAX_XARGS_BYTES, SamplingFields

# Same name and meaning in OpenAI's or vLLM's API and in SamplingParams.
_SAME = {
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "length_penalty",
    "seed",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "bad_words",
    "allowed_token_ids",
    "logit_bias",
    "logprob_token_ids",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "thinking_token_budget",
}
# Defaults. Dropped for a model that does not support the field, since many clients send the
# defaults of the API.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "min_tokens": (0,),
    "temperature": (1,),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "stop": ([],),
    "stop_token_ids": ([],),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "bad_words": ([],),
    "logit_bias": ({},),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
}
# SamplingParams' names for fields that have another name in requests.
REQUEST_NAMES = {"extra_args": "vllm_xargs", "beam_width": "use_beam_search"}
UNLIMITED = -1  # a `max_tokens` that sets no limit
_WITH_TOKEN_IDS = ("stop_token_ids", "allowed_token_ids", "logit_bias", "logprob_token_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """The constraint of one output, for the engine and for the parser."""

    structured: StructuredOutputs | None = None  # for the engine
    forced: str | None = None  # for the parser: only this function's arguments follow
    any_call: bool = False  # for the parser: a JSON array of calls follows
    needed: bool = True  # False: an engine that cannot do it may ignore it; the parser checks
    param: str = "structured_outputs"  # the request field that asks for it
    field_names: Mapping[str, str] = field(default_factory=dict)  # engine's name -> request's
    extra_args: Mapping[str, Any] = field(default_factory=dict)  # from a plug-in, for the engine's
    # None: what an engine refuses is the client's error
    fallback: ConstraintFallback | None = field(default=None, compare=False)


NO_CONSTRAINT = Constraint()


@dataclass(slots=True, kw_only=True)
class SamplingOptions:
    """Sampling options that depend on the endpoint."""

    max_tokens: int | None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    constraint: Constraint = NO_CONSTRAINT
    special_tokens: bool = False  # keep them in the text unless the request says otherwise


def sampling_params(
    request: SamplingFields, options: SamplingOptions, model: Describes
) -> SamplingParams:
    """The request's sampling parameters. What it leaves out stays the model's default."""
    values = _requested(request, options)
    constraint = options.constraint
    if constraint.structured is not None and _applies(constraint, constraint.structured, model):
        values["structured_outputs"] = constraint.structured
    values = _supported(values, options, model)
    _check_max_tokens(request, model)
    if options.logprobs is not None:
        values["logprobs"] = options.logprobs
        _check_logprobs(options.logprobs, request, model)
        if request.use_beam_search:
            message = "Unsupported parameter: 'logprobs' cannot be used with 'use_beam_search'."
            raise InvalidRequest(message, param="logprobs", code="unsupported_parameter")
    if options.prompt_logprobs is not None:
        values["prompt_logprobs"] = options.prompt_logprobs
    if values:  # most requests have none
        _check_values(values, options, model)
    if values.get("top_p") == 0:
        # OpenAI's "only the likeliest token"; vLLM's top_p must be above 0.
        if not model.supports("top_k"):
            raise unsupported("top_p")
        del values["top_p"]
        values["top_k"] = 1
    return SamplingParams(max_tokens=options.max_tokens, **values)


def _applies(constraint: Constraint, structured: StructuredOutputs, model: Describes) -> bool:
    """Whether the engine gets the constraint: always if needed, else only if the model can."""
    return constraint.needed or _supports_structured(structured, model)


def _supports_structured(structured: StructuredOutputs, model: Describes) -> bool:
    """Whether the model supports this kind of structured output with these options."""
    members = [
        each for each in fields(structured) if getattr(structured, each.name) != each.default
    ]
    needed = ("structured_outputs", *(f"structured_outputs.{each.name}" for each in members))
    return all(map(model.supports, needed))


def _check_values(values: dict[str, Any], options: SamplingOptions, model: Describes) -> None:
    _check_token_ids(values, model.facts.vocab_size)
    _check_size("bad_words", sum(map(len, values.get("bad_words", ()))))
    _check_xargs_size(values.get("extra_args"))
    _check_min_tokens(values.get("min_tokens", 0), options.max_tokens)


def _requested(request: SamplingFields, options: SamplingOptions) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in request.model_fields_set & _SAME:  # requests set only a few
        value = getattr(request, name)
        if value is not None:
            values[name] = value
    if request.stop is not None:
        values["stop"] = [request.stop] if isinstance(request.stop, str) else request.stop
    if options.special_tokens and request.skip_special_tokens is None:
        values["skip_special_tokens"] = False
    if request.repetition_detection is not None:
        values["repetition_detection"] = request.repetition_detection.model_dump()
    if request.use_beam_search:
        values["beam_width"] = max(request.n or 1, getattr(request, "best_of", None) or 1)
    if request.vllm_xargs or options.constraint.extra_args:
        _check_xargs_names(request.vllm_xargs or {})
        values["extra_args"] = {**(request.vllm_xargs or {}), **options.constraint.extra_args}
    return values


def _supported(
    values: Mapping[str, Any], options: SamplingOptions, model: Describes
) -> dict[str, Any]:
    """The values that the model supports. Drops defaults, and raises for any other value."""
    request_names = {**REQUEST_NAMES, "structured_outputs": options.constraint.param}
    supported = {}
    for name, value in values.items():
        if (
            _supports_structured(value, model)
            if name == "structured_outputs"
            else model.supports(name)
        ):
            supported[name] = value
        elif value not in _NEUTRAL.get(name, ()):
            raise unsupported(request_names.get(name, name))
    return supported


def _check_max_tokens(request: SamplingFields, model: Describes) -> None:
    """Check what the request sets itself, not what the context leaves."""
    limit = model.max_output_tokens
    for name in ("max_completion_tokens", "max_tokens"):
        if (requested := getattr(request, name, None)) in (None, UNLIMITED):
            continue
        if not model.supports("max_tokens"):
            raise unsupported(name)
        if limit is not None and requested > limit:
            message = (
                f"Invalid '{name}': integer above maximum value. "
                f"Expected a value <= {limit} for this model, but got {requested} instead."
            )
            raise InvalidRequest(message, param=name, code="integer_above_max_value")


def _check_logprobs(alternatives: int, request: SamplingFields, model: Describes) -> None:
    check_supported(["logprobs"], model)
    if alternatives and not model.supports("top_logprobs"):
        raise unsupported("top_logprobs" if hasattr(request, "top_logprobs") else "logprobs")
    if request.return_tokens_as_token_ids and not model.supports("logprob_ids"):
        raise unsupported("return_tokens_as_token_ids")


def check_supported(names: Iterable[str], model: Describes) -> None:
    """Raise InvalidRequest for the first field that the model does not support."""
    for name in names:
        if not model.supports(name):
            raise unsupported(name)


def unsupported(name: str) -> InvalidRequest:
    """The error for a field that this model does not support."""
    message = f"Unsupported parameter: '{name}' is not supported with this model."
    return InvalidRequest(message, param=name, code="unsupported_parameter")


def _check_size(param: str, characters: int) -> None:
    # the engine tokenizes them for each choice
    if characters > MAX_BAD_WORDS_CHARACTERS:
        message = (
            f"Invalid '{param}': expected at most {MAX_BAD_WORDS_CHARACTERS} characters in total, "
            f"but got {characters} instead."
        )
        raise InvalidRequest(message, param=param)


def _check_xargs_names(xargs: Mapping[str, Any]) -> None:
    for name in xargs.keys() & RESERVED_ARGS:
        param = f"vllm_xargs.{name}"
        raise InvalidRequest(f"Invalid '{param}': reserved for the gateway.", param=param)


def _check_xargs_size(xargs: Mapping[str, Any] | None) -> None:
    if xargs and (size := len(orjson.dumps(xargs))) > MAX_XARGS_BYTES:
        message = (
            f"Invalid 'vllm_xargs': expected at most {MAX_XARGS_BYTES} bytes of JSON, "
            f"but got {size} instead."
        )
        raise InvalidRequest(message, param="vllm_xargs")


def _check_token_ids(values: dict[str, Any], vocab_size: int | None) -> None:
    for name in _WITH_TOKEN_IDS:
        if values.get(name) and vocab_size is not None:
            check_in_vocabulary(values[name], vocab_size, name)


def check_in_vocabulary(token_ids: Iterable[int], vocab_size: int, param: str) -> None:
    """Raise InvalidRequest for a token id that the model does not have."""
    largest = max(token_ids)
    if largest >= vocab_size:
        message = (
            f"Invalid '{param}': token id {largest} is out of range; the vocabulary has "
            f"{vocab_size} tokens."
        )
        raise InvalidRequest(message, param=param)


def _check_min_tokens(min_tokens: int, max_tokens: int | None) -> None:
    if max_tokens is not None and min_tokens > max_tokens:
        message = (
            f"Invalid 'min_tokens': integer above maximum value. Expected a value <= {max_tokens} "
            f"(the maximum length of the output), but got {min_tokens} instead."
        )
        raise InvalidRequest(message, param="min_tokens", code="integer_above_max_value")


def for_choice(params: SamplingParams, choice: int) -> SamplingParams:
    """Parameters of one of n choices, which differ in their seeds: seed, seed + 1, ... in int64."""
    if params.seed is None or choice == 0:
        return params
    wrapped = (params.seed + choice + INT64_MAX + 1) % 2**64 - INT64_MAX - 1
    return replace(params, seed=wrapped)


def clamp_max_tokens(tokens: int | None, model: Describes) -> int | None:
    """The output length, at most the model's limit."""
    limit = model.max_output_tokens
    return limit if tokens is None else tokens if limit is None else min(tokens, limit)


def token_budget(
    max_tokens: int | None, *, prompt_tokens: int, context: int | None, param: str
) -> int | None:
    """The maximum output length. Raises ContextLengthExceeded if prompt and output do not fit.

    Without `max_tokens` the output may fill the context. `param` is the prompt's field.
    """
    if context is None:
        return max_tokens
    output_tokens = max(1, max_tokens or 1)  # engines generate at least one token
    if prompt_tokens + output_tokens > context:
        raise _too_long(prompt_tokens, output_tokens, context, param)
    return context - prompt_tokens if max_tokens is None else max_tokens


def _too_long(
    prompt_tokens: int, output_tokens: int, context: int, param: str
) -> ContextLengthExceeded:
    message = (
        f"This model's maximum context length is {context} tokens. However, you requested "
        f"{prompt_tokens + output_tokens} tokens ({prompt_tokens} in the {param}, {output_tokens} "
        f"in the completion). Please reduce the length of the {param} or completion."
    )
    error = ContextLengthExceeded(message, param=param)
    error.prompt_tokens, error.context = prompt_tokens, context
    return error


def truncation(
    request: SamplingFields, model: Describes, *, output_tokens: int
) -> Truncation | None:
    """How to truncate the prompt; None if it must fit. -1 leaves room for the output."""
    tokens = request.truncate_prompt_tokens
    if tokens is None:
        return None
    if not model.supports("prompt_token_ids") or model.facts.max_model_len is None:
        raise unsupported("truncate_prompt_tokens")  # the backend tokenizes
    room = max(1, model.facts.max_model_len - output_tokens)
    # like vLLM, keep the end, which the model continues
    return Truncation(room if tokens < 1 else tokens, request.truncation_side or "left")
