"""OpenAI's sampling fields to vLLM's SamplingParams; whether the answer fits the context."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from openai_frontend.errors import ContextLengthExceeded, InvalidRequest
from openai_frontend.generation import SamplingParams, StructuredOutputs
from openai_frontend.serving.constraints import NO_CONSTRAINT, Constraint
from schemas.sampling import INT64_MAX, MAX_BAD_WORDS_CHARACTERS, SamplingFields

# Same name and meaning on both sides.
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
# Values that ask for nothing. They are dropped for a model that does not support the field: many
# clients write out the defaults of the API
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
# A model's words for fields that requests call otherwise
REQUEST_NAMES = {"extra_args": "vllm_xargs", "beam_width": "use_beam_search"}
UNLIMITED = -1  # a `max_tokens` that sets no limit
_WITH_TOKEN_IDS = ("stop_token_ids", "allowed_token_ids", "logit_bias", "logprob_token_ids")


class SamplingSupport(Protocol):
    """What must be known of a model to read sampling fields for it."""

    @property
    def vocab_size(self) -> int | None:
        """Token ids are below it."""

    @property
    def max_output_tokens(self) -> int | None:
        """No answer of it may be longer."""

    def supports(self, field: str) -> bool:
        """Whether the model can honour a field of GenerationRequest or SamplingParams, or one of
        the abilities that contracts/contract.py names.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """What an endpoint asks of the engine beside the fields that mean the same everywhere."""

    max_tokens: int | None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    held: Constraint = NO_CONSTRAINT  # what the answer must be
    special_tokens: bool = False  # in the text, unless the request leaves them out itself


def sampling_params(
    request: SamplingFields, asked: SamplingOptions, model: SamplingSupport
) -> SamplingParams:
    """The request's own words on sampling; what it leaves out stays the model's default."""
    values = _given(request, asked)
    if asked.held.structured is not None and _is_held(asked.held, asked.held.structured, model):
        values["structured_outputs"] = asked.held.structured
    values = _supported(values, asked, model)
    _check_max_tokens(request, model)
    if asked.logprobs is not None:
        values["logprobs"] = asked.logprobs
        _check_logprobs(asked.logprobs, request, model)
        if request.use_beam_search:
            message = "Unsupported parameter: 'logprobs' cannot be used with 'use_beam_search'."
            raise InvalidRequest(message, param="logprobs", code="unsupported_parameter")
    if asked.prompt_logprobs is not None:
        values["prompt_logprobs"] = asked.prompt_logprobs
    if values:  # most requests say nothing
        _check_values(values, asked, model)
    if values.get("top_p") == 0:
        # OpenAI's "only the likeliest token"; vLLM's top_p must be above 0.
        if not model.supports("top_k"):
            raise unsupported("top_p")
        del values["top_p"]
        values["top_k"] = 1
    return SamplingParams(max_tokens=asked.max_tokens, **values)


def _is_held(held: Constraint, structured: StructuredOutputs, model: SamplingSupport) -> bool:
    """What only spares work that is done anyway is not asked of a model that cannot do it."""
    return held.needed or _holds(structured, model)


def _holds(structured: StructuredOutputs, model: SamplingSupport) -> bool:
    """Whether the model can hold its answer to a form of this kind, with these options."""
    members = [
        each for each in fields(structured) if getattr(structured, each.name) != each.default
    ]
    needed = ("structured_outputs", *(f"structured_outputs.{each.name}" for each in members))
    return all(map(model.supports, needed))


def _check_values(values: dict[str, Any], asked: SamplingOptions, model: SamplingSupport) -> None:
    _check_token_ids(values, model.vocab_size)
    _check_size("bad_words", sum(map(len, values.get("bad_words", ()))))
    _check_min_tokens(values.get("min_tokens", 0), asked.max_tokens)


def _given(request: SamplingFields, asked: SamplingOptions) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in request.model_fields_set & _SAME:  # few of a request's fields are ever given
        value = getattr(request, name)
        if value is not None:
            values[name] = value
    if request.stop is not None:
        values["stop"] = [request.stop] if isinstance(request.stop, str) else request.stop
    if asked.special_tokens and request.skip_special_tokens is None:
        values["skip_special_tokens"] = False
    if request.repetition_detection is not None:
        values["repetition_detection"] = request.repetition_detection.model_dump()
    if request.use_beam_search:
        values["beam_width"] = max(request.n or 1, getattr(request, "best_of", None) or 1)
    if request.vllm_xargs or asked.held.extra_args:
        values["extra_args"] = {**(request.vllm_xargs or {}), **asked.held.extra_args}
    return values


def _supported(
    values: Mapping[str, Any], asked: SamplingOptions, model: SamplingSupport
) -> dict[str, Any]:
    """The values without neutral ones that the model cannot be sent; raises for any other."""
    request_names = {**REQUEST_NAMES, "structured_outputs": asked.held.param}
    supported = {}
    for name, value in values.items():
        if _holds(value, model) if name == "structured_outputs" else model.supports(name):
            supported[name] = value
        elif value not in _NEUTRAL.get(name, ()):
            raise unsupported(request_names.get(name, name))
    return supported


def _check_max_tokens(request: SamplingFields, model: SamplingSupport) -> None:
    """Only where the request says one: the room that is left in the context is no wish."""
    most = model.max_output_tokens
    for name in ("max_completion_tokens", "max_tokens"):
        if (asked := getattr(request, name, None)) in (None, UNLIMITED):
            continue
        if not model.supports("max_tokens"):
            raise unsupported(name)
        if most is not None and asked > most:
            message = (
                f"Invalid '{name}': integer above maximum value. "
                f"Expected a value <= {most} for this model, but got {asked} instead."
            )
            raise InvalidRequest(message, param=name, code="integer_above_max_value")


def _check_logprobs(alternatives: int, request: SamplingFields, model: SamplingSupport) -> None:
    check_supported(["logprobs"], model)
    if alternatives and not model.supports("top_logprobs"):
        raise unsupported("top_logprobs" if hasattr(request, "top_logprobs") else "logprobs")
    if request.return_tokens_as_token_ids and not model.supports("logprob_ids"):
        raise unsupported("return_tokens_as_token_ids")


def check_supported(names: Iterable[str], model: SamplingSupport) -> None:
    """Raises for the first field that the model cannot honour."""
    for name in names:
        if not model.supports(name):
            raise unsupported(name)


def unsupported(name: str) -> InvalidRequest:
    """The refusal of a field by this model."""
    message = f"Unsupported parameter: '{name}' is not supported with this model."
    return InvalidRequest(message, param=name, code="unsupported_parameter")


def _check_size(param: str, characters: int) -> None:
    """The engine tokenizes them for each choice."""
    if characters > MAX_BAD_WORDS_CHARACTERS:
        most = f"at most {MAX_BAD_WORDS_CHARACTERS} characters in all"
        message = f"Invalid '{param}': {most}, not {characters}."
        raise InvalidRequest(message, param=param)


def _check_token_ids(values: dict[str, Any], vocab_size: int | None) -> None:
    for name in _WITH_TOKEN_IDS:
        if values.get(name) and vocab_size is not None:
            check_in_vocabulary(values[name], vocab_size, name)


def check_in_vocabulary(token_ids: Iterable[int], vocab_size: int, param: str) -> None:
    """Raises where the model has no such token."""
    largest = max(token_ids)
    if largest >= vocab_size:
        message = f"Invalid '{param}': the model has no token {largest}; it has {vocab_size}."
        raise InvalidRequest(message, param=param)


def _check_min_tokens(min_tokens: int, max_tokens: int | None) -> None:
    if max_tokens is not None and min_tokens > max_tokens:
        message = (
            f"Invalid 'min_tokens': integer above maximum value. Expected a value <= {max_tokens} "
            f"(the most tokens the answer may have), but got {min_tokens} instead."
        )
        raise InvalidRequest(message, param="min_tokens", code="integer_above_max_value")


def for_choice(params: SamplingParams, choice: int) -> SamplingParams:
    """The n choices of a request differ in their seeds alone: seed, seed + 1, ... within int64."""
    if params.seed is None or choice == 0:
        return params
    wrapped = (params.seed + choice + INT64_MAX + 1) % 2**64 - INT64_MAX - 1
    return replace(params, seed=wrapped)


def clamp_max_tokens(tokens: int | None, model: SamplingSupport) -> int | None:
    """A length that nobody asked for is no longer than the model's answers may be."""
    most = model.max_output_tokens
    return most if tokens is None else tokens if most is None else min(tokens, most)


def token_budget(
    max_tokens: int | None, *, prompt_tokens: int, context: int | None, param: str
) -> int | None:
    """The most tokens that the answer may have; raises where prompt and answer do not fit.

    Without `max_tokens` an answer may fill the context. `param` is the field that holds the prompt.
    """
    if context is None:
        return max_tokens
    wanted = max(1, max_tokens or 1)  # engines read no prompt without a token to follow it
    if prompt_tokens + wanted > context:
        raise _too_long(prompt_tokens, wanted, context, param)
    return context - prompt_tokens if max_tokens is None else max_tokens


def _too_long(prompt_tokens: int, wanted: int, context: int, param: str) -> ContextLengthExceeded:
    message = (
        f"This model's maximum context length is {context} tokens. However, you requested "
        f"{prompt_tokens + wanted} tokens ({prompt_tokens} in the {param}, {wanted} in the "
        f"completion). Please reduce the length of the {param} or completion."
    )
    return ContextLengthExceeded(message, param=param)
