"""Between this project's requests and deltas and vLLM's."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from openai_frontend.engines.engine import EngineError
from openai_frontend.engines.vllm.grammar_preprocess import reason_of_xgrammar
from openai_frontend.generation import (
    CompletionDelta,
    SamplingParams,
    StructuredOutputs,
    TokenCounts,
)
from openai_frontend.triton import error_codes

ENGINE_DIED = "vLLM's engine process has died"

# What one request may hold in vLLM's GPU worker, which dies of more (0.32, v1/worker/gpu/sample/
# logit_bias.py): 128 stop tokens where min_tokens is set, the model's own among them.
MAX_STOP_TOKEN_IDS = 100
MAX_TOKEN_IDS = {"logit_bias": 1024, "allowed_token_ids": 1024}

# What vLLM reads in a request's extra_args itself (0.32, v1/request.py): where its cache's blocks
# come from and go to.
ENGINES_OWN_ARGS = {"kv_transfer_params", "ec_transfer_params", "kv_cache_report_mode"}

# SamplingParams of other backends
UNSUPPORTED_FIELDS = ("beam_width", "length_penalty")

# vLLM takes a seed of -1 for none, its GPU worker keeps seeds as int64, and a larger one ends its
# process. So every seed is mapped to one from 0 on; those are their own.
SEED_MASK = 2**63 - 1

_NAMES = {
    each: [field.name for field in dataclasses.fields(each)]
    for each in (SamplingParams, StructuredOutputs)
}


def sampling_params(params: SamplingParams, defaults: Mapping[str, Any], *, stream: bool) -> Any:
    """Return vLLM's SamplingParams; `defaults` are the model's own (generation_config.json)."""
    from vllm.sampling_params import RequestOutputKind
    from vllm.sampling_params import SamplingParams as VLLMSamplingParams

    for name in UNSUPPORTED_FIELDS:
        if getattr(params, name) is not None:
            raise ValueError(f"{name}: vLLM has no such parameter")
    if params.min_tokens and len(params.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise ValueError(
            f"stop_token_ids: at most {MAX_STOP_TOKEN_IDS} of them go together with min_tokens"
        )
    for name, most in MAX_TOKEN_IDS.items():
        if len(getattr(params, name) or ()) > most:
            raise ValueError(f"{name}: at most {most} tokens")
    kind = RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY
    fields = {"max_tokens": None, **defaults, **_fields(params)}
    if "skip_clone" in VLLMSamplingParams.__struct_fields__:
        fields["skip_clone"] = True  # made for this request alone; a deep copy takes 60 us
    return VLLMSamplingParams(**fields, output_kind=kind)


def _fields(params: SamplingParams) -> dict[str, Any]:
    """What the request sets, in vLLM's types; it takes an empty list for one that is set."""
    fields = _set_fields(params)
    if params.seed is not None:
        fields["seed"] = params.seed & SEED_MASK
    if params.structured_outputs is not None:
        fields["structured_outputs"] = _structured_outputs(params.structured_outputs)
    if params.repetition_detection is not None:
        fields["repetition_detection"] = _repetition_detection(params.repetition_detection)
    if params.extra_args is not None:
        fields["extra_args"] = _extra_args(params.extra_args)
    if params.logprob_token_ids:  # in place of the likeliest, as vLLM's own server does
        fields.pop("logprobs", None)
    return fields


def _set_fields(params: SamplingParams | StructuredOutputs) -> dict[str, Any]:
    values = [(name, getattr(params, name)) for name in _NAMES[type(params)]]
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values
        if value is not None and value != () and value != []
    }


def _structured_outputs(structured: StructuredOutputs) -> Any:
    from vllm.sampling_params import StructuredOutputsParams

    if structured.disable_any_whitespace or structured.whitespace_pattern is not None:
        # vLLM 0.32 takes them, and does nothing with them.
        raise ValueError("structured_outputs: vLLM has no rule for whitespace in one request alone")
    return StructuredOutputsParams(**_set_fields(structured))


def _repetition_detection(wanted: Mapping[str, int]) -> Any:
    from vllm.exceptions import VLLMClientError
    from vllm.sampling_params import RepetitionDetectionParams

    # It leaves out keys that it does not know.
    known = {field.name for field in dataclasses.fields(RepetitionDetectionParams)}
    if unknown := wanted.keys() - known:
        raise ValueError(f"repetition_detection: it has no {', '.join(sorted(unknown))}")
    try:
        return RepetitionDetectionParams(**wanted)
    except VLLMClientError as error:  # which names no field
        raise ValueError(f"repetition_detection: {error.args[0]}") from error


def _extra_args(given: Mapping[str, Any]) -> dict[str, Any]:
    """Only what a plug-in can read: what steers the engine itself is not a client's to say."""
    for name, value in given.items():
        if name in ENGINES_OWN_ARGS:
            raise ValueError(f"extra_args: {name} is not for requests")
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, str | int | float):
                raise ValueError(f"extra_args: {name} is no text, number or boolean, nor a list")
            if isinstance(each, int) and not -(2**63) <= each < 2**64:
                raise ValueError(f"extra_args: {name} is a number of more than 64 bits")
    return dict(given)


def check_bad_words(params: Any) -> None:
    """Raise ValueError where vLLM's GPU worker would die of too many tokens of bad words, which
    vLLM has put into `params` by now.
    """
    from vllm import envs

    most = envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS
    if sum(map(len, params.bad_words_token_ids or ())) > most:
        raise ValueError(f"bad_words: at most {most} tokens together")


def prompt(text: str | None, token_ids: Sequence[int] | None, cache_salt: str | None = None) -> Any:
    """Return vLLM's input. Token ids need no work of it; text it tokenizes in a thread."""
    from vllm.inputs import TextPrompt
    from vllm.inputs.engine import tokens_input

    if token_ids is not None:
        return tokens_input(list(token_ids), cache_salt=cache_salt)
    salt = {} if cache_salt is None else {"cache_salt": cache_salt}
    return TextPrompt(prompt=text or "", **salt)


def second_type_from(token_type_ids: Sequence[int]) -> int:
    """Return where the tokens of type 1 begin, which is all that vLLM is told of them."""
    first = token_type_ids.index(1) if 1 in token_type_ids else len(token_type_ids)
    if list(token_type_ids) != [0] * first + [1] * (len(token_type_ids) - first):
        raise ValueError("token_type_ids: zeros and then ones")
    return first


def delta(output: Any, params: Any, *, begun: bool) -> CompletionDelta:
    """Return what a RequestOutput adds; `params` are the request's, in vLLM's form, and `begun`
    says whether an earlier output had a token.
    """
    completion = output.outputs[0]
    told = CompletionDelta(
        completion.text,
        completion.token_ids,
        logprobs=_logprobs(completion.logprobs),
        prompt_logprobs=_logprobs(output.prompt_logprobs or None),  # [] once they are told
    )
    if completion.finish_reason is not None:
        begun = begun or bool(completion.token_ids)
        told.finish_reason = finish_reason(completion.finish_reason, params, begun)
        told.stop_reason = completion.stop_reason
        told.counts = TokenCounts(
            prompt_tokens=len(output.prompt_token_ids or ()),
            cached_tokens=output.num_cached_tokens or 0,
        )
    return told


def finish_reason(reason: object, params: Any, begun: bool) -> Any:
    """Return vLLM's reason as ours. Raises EngineError where the engine gave the request up;
    `begun` says whether it had made a token by then.
    """
    name = str(reason)
    if name in ("stop", "length"):
        return name
    if name == "repetition":
        return "stop"
    if params.structured_outputs is not None and not begun:
        # Its process compiles grammars, and says no more than that it could not.
        message = "structured_outputs: the engine cannot make a grammar of it"
        raise EngineError(message, error_codes.INVALID_ARG)
    raise EngineError(f"the engine ended the request: {name}")


def _logprobs(positions: Any) -> list[Any] | None:
    if positions is None:
        return None
    return [position and _logprobs_of(position) for position in positions]


def _logprobs_of(position: Any) -> dict[int, dict[str, Any]]:
    return {
        token: {
            "logprob": entry.logprob,
            "rank": entry.rank,
            "decoded_token": entry.decoded_token,
        }
        for token, entry in position.items()
    }


@contextlib.contextmanager
def translate_errors(params: Any = None) -> Iterator[None]:
    """Turn vLLM's exceptions into ours: a dead engine is unavailable, a refused request the
    caller's fault. `params` are the request's, of vLLM's type.
    """
    from vllm.exceptions import VLLMClientError
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    try:
        yield
    except EngineDeadError as error:
        raise EngineError(ENGINE_DIED, error_codes.UNAVAILABLE) from error
    except VLLMClientError as error:
        raise ValueError(_message(error, params)) from error
    except EngineGenerateError as error:
        # AsyncLLM's wrapper, without a message, around whatever it was.
        raise _unwrapped(error.__cause__ or error) from error
    except OverflowError as error:
        raise _unwrapped(error) from error


def _unwrapped(error: BaseException) -> BaseException:
    if isinstance(error, OverflowError):  # of the encoder between vLLM's processes
        return ValueError(f"a number of the request is too large: {error}")
    return error


def _message(error: Any, params: Any) -> str:
    """vLLM's own message, which its `str` follows with the whole refused value; the field first,
    where the message does not name it.
    """
    message, parameter = str(error.args[0]), getattr(error, "parameter", None)
    if parameter is None and getattr(params, "structured_outputs", None) is not None:
        # its checks of grammars name no field, and the last backend that it tried is seldom the
        # one that knows what is wrong
        parameter, message = "structured_outputs", _reason_of_xgrammar(error) or message
    if parameter is None or message.startswith(f"{parameter}: "):
        return message
    return f"{parameter}: {message}"


def _reason_of_xgrammar(error: BaseException | None) -> str | None:
    """The first error of xgrammar's among the causes of a refusal."""
    while error is not None:
        if (reason := reason_of_xgrammar(error)) is not None:
            return reason
        error = error.__cause__ or error.__context__
    return None
