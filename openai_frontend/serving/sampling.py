"""OpenAI's sampling fields to vLLM's SamplingParams; whether the answer fits the context."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from openai_frontend.errors import ContextLengthExceeded, InvalidRequest
from openai_frontend.generation import SamplingParams
from schemas.sampling import INT64_MAX, SamplingFields

# Same name and meaning on both sides.
_SAME = (
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop_token_ids",
    "ignore_eos",
)


def sampling_params(
    request: SamplingFields, max_tokens: int | None, supports: Callable[[str], bool]
) -> SamplingParams:
    """The request's own words on sampling; what it leaves out stays the model's default.

    `supports` says whether the model can honour a field at all.
    """
    values: dict[str, Any] = {}
    for name in _SAME:
        value = getattr(request, name)
        if value is not None:
            values[name] = value
    stop = _stop(request)
    _check_supported([*values, "stop"] if stop else values, supports)
    if values.get("top_p") == 0:
        # OpenAI's "only the likeliest token"; vLLM's top_p must be above 0.
        del values["top_p"]
        values["top_k"] = 1
    _check_min_tokens(values.get("min_tokens", 0), max_tokens)
    return SamplingParams(max_tokens=max_tokens, stop=stop, **values)


def _stop(request: SamplingFields) -> Sequence[str]:
    if request.stop is None:
        return ()
    return [request.stop] if isinstance(request.stop, str) else request.stop


def _check_supported(names: Iterable[str], supports: Callable[[str], bool]) -> None:
    for name in names:
        if not supports(name):
            message = f"Unsupported parameter: '{name}' is not supported with this model."
            raise InvalidRequest(message, param=name, code="unsupported_parameter")


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


def room_for_answer(
    max_tokens: int | None, *, prompt_tokens: int, context: int | None, param: str
) -> int | None:
    """The most tokens that the answer may have; raises where prompt and answer do not fit.

    Without `max_tokens` an answer may fill the context. `param` is the field that holds the prompt.
    """
    if context is None:
        return max_tokens
    wanted = 1 if max_tokens is None else max_tokens
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
