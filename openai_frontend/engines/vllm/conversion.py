"""Converts requests to vLLM's types, and vLLM's outputs and errors to ours."""

import copy
import dataclasses
import time
import traceback
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import numpy as np
import orjson

from openai_frontend.engines.engine import ConstraintError, EngineError
from openai_frontend.engines.sampling_parameters import CONTAINERS, MOST_SHARED_BYTES
from openai_frontend.engines.vllm import versions
from openai_frontend.engines.vllm.grammars.backends import (
    GRAMMAR_EXCEEDED,
    GRAMMAR_EXCLUDED,
    GRAMMAR_FAILED,
)
from openai_frontend.engines.vllm.grammars.xgrammar_errors import reason_of_xgrammar
from openai_frontend.generation import (
    RESERVED_ARGS,
    CompletionDelta,
    GenerationRequest,
    SamplingParams,
    StructuredOutputs,
    TokenCounts,
)
from openai_frontend.triton import error_codes

ENGINE_DIED = "vLLM's engine process died"

# Limits per request of vLLM's GPU worker, which crashes beyond them (0.32,
# v1/worker/gpu/sample/logit_bias.py): 128 stop tokens with min_tokens, including the model's own.
MAX_STOP_TOKEN_IDS = 100
MAX_TOKEN_IDS = {"logit_bias": 1024, "allowed_token_ids": 1024}

# fields of SamplingParams that only other backends support
UNSUPPORTED_FIELDS = ("beam_width", "length_penalty")

# vLLM treats a seed of -1 as no seed, and its GPU worker stores seeds as int64: a larger one
# crashes its process. So every seed is masked to a non-negative int64.
SEED_MASK = 2**63 - 1

_NAMES = {
    each: [field.name for field in dataclasses.fields(each)]
    for each in (SamplingParams, StructuredOutputs)
}


def model_defaults(config: Any) -> dict[str, Any]:
    """The sampling parameters of a model's generation_config.json, by a vLLM ModelConfig. Before
    0.33, vLLM's own server ignores `skip_special_tokens` there.
    """
    defaults: dict[str, Any] = dict(config.get_diff_sampling_param())
    uses_file = config.generation_config != "vllm"
    file = config.try_get_generation_config() if uses_file else {}
    skips = {**file, **config.override_generation_config}.get("skip_special_tokens")
    if isinstance(skips, bool):
        defaults["skip_special_tokens"] = skips
    return defaults


def sampling_params(params: SamplingParams, defaults: Mapping[str, Any], *, stream: bool) -> Any:
    """Return vLLM's SamplingParams. `defaults` are the model's own (generation_config.json)."""
    from vllm.sampling_params import RequestOutputKind
    from vllm.sampling_params import SamplingParams as VLLMSamplingParams

    for name in UNSUPPORTED_FIELDS:
        if getattr(params, name) is not None:
            raise ValueError(f"{name}: not supported by vLLM")
    if params.min_tokens and len(params.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise ValueError(f"stop_token_ids: at most {MAX_STOP_TOKEN_IDS} with min_tokens")
    for name, most in MAX_TOKEN_IDS.items():
        if len(getattr(params, name) or ()) > most:
            raise ValueError(f"{name}: at most {most} tokens")
    kind = RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY
    fields = {"max_tokens": None, **defaults, **_fields(params)}
    if "skip_clone" in VLLMSamplingParams.__struct_fields__:
        fields["skip_clone"] = True  # only this request uses it; a deep copy takes 60 us
    return VLLMSamplingParams(**fields, output_kind=kind)


def is_whole(params: Any) -> bool:
    """Whether the client of vLLM's SamplingParams gets nothing before the end."""
    from vllm.sampling_params import RequestOutputKind

    whole: bool = params.output_kind == RequestOutputKind.FINAL_ONLY
    return whole


class SharedParams:
    """Converts sampling parameters that requests share (`engines.sampling_parameters.read_text`)
    once: vLLM's take 25 us. Its input processor copies them for each request, but not the lists and
    objects in them, so parameters that have some are converted each time. So are those that are too
    long to be shared, which would stay in memory.
    """

    _MOST = 256

    def __init__(self, defaults: Mapping[str, Any]) -> None:
        self._defaults = defaults
        # By identity, which the entry keeps from being reused
        self._known: dict[tuple[int, bool], tuple[SamplingParams, Any]] = {}

    def convert(self, params: SamplingParams, *, stream: bool) -> Any:
        """Like `sampling_params`, but the caller must not change the result."""
        known = self._known.get((id(params), stream))
        if known is not None:
            return known[1]
        converted = sampling_params(params, self._defaults, stream=stream)
        changeable = any(getattr(params, name) for name in CONTAINERS)
        if not changeable and _is_short(params):
            if len(self._known) >= self._MOST:
                self._known.clear()
            self._known[id(params), stream] = params, converted
        return converted


def _is_short(params: Any) -> bool:
    """Whether requests may share these parameters, the gateway's or vLLM's (`read_text`)."""
    if not params.structured_outputs and not params.stop:
        return True
    try:
        return len(orjson.dumps([params.structured_outputs, params.stop])) <= MOST_SHARED_BYTES
    except TypeError:  # integers of more than 64 bits
        return False


class RequestTemplates:
    """Makes engine requests from earlier ones that had the same sampling parameters.

    vLLM's input processor checks, copies and completes the parameters of each request, and goes
    through its prompt twice. For parameters that requests share (`SharedParams`), the result
    depends only on them, but for `max_tokens` if they do not state it, so it is kept.
    """

    _MOST = 256

    def __init__(self, max_model_len: int, vocab_size: int) -> None:
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        # By identity, which the entry keeps from being reused
        self._known: dict[int, tuple[Any, Any]] = {}

    def keep(self, params: Any, request: Any) -> None:
        """Use a request, which the input processor made of a prompt and `params`, from now on.

        Its prompt is not kept.
        """
        own = [request.mm_features, request.lora_request, request.trace_headers]
        given = [getattr(params, name, None) for name in CONTAINERS]
        unchecked = params.max_tokens is None and params.min_tokens
        # Prepared constraints may be ten times as long (`GrammarPreparer`)
        is_short = _is_short(params) and _is_short(request.sampling_params)
        if unchecked or any(own) or any(given) or not is_short:
            return
        if len(self._known) >= self._MOST:
            self._known.clear()
        template = copy.copy(request)
        template.prompt_token_ids = template.cache_salt = None
        self._known[id(params)] = params, template

    def make(self, params: Any, request: GenerationRequest, token_ids: Sequence[int]) -> Any:
        """An EngineCoreRequest for a prompt of token ids. None if the input processor is needed:
        for other parameters, media or an adapter, and to refuse a prompt.
        """
        known = self._known.get(id(params))
        if known is None or request.adapter is not None:
            return None
        if request.images or request.audio_files:
            return None
        if not 0 < len(token_ids) < self._max_model_len:
            return None
        if (packed := self._packed(token_ids)) is None:
            return None
        made = copy.copy(known[1])
        made.request_id = made.external_req_id = request.request_id
        made.prompt_token_ids = packed
        made.arrival_time = time.time()
        made.cache_salt = request.cache_salt
        made.priority = request.priority
        if params.max_tokens is None:  # until the context is full
            made.sampling_params = copy.copy(made.sampling_params)
            made.sampling_params.max_tokens = self._max_model_len - len(token_ids)
        return made

    def _packed(self, token_ids: Sequence[int]) -> Any:
        """The ids as vLLM's encoder takes them. None if one is not in the vocabulary."""
        if type(token_ids) is list:  # few
            return token_ids if min(token_ids) >= 0 and max(token_ids) < self._vocab_size else None
        values = np.asarray(token_ids, np.int32)
        if values.min() < 0 or values.max() >= self._vocab_size:
            return None
        return _array_message(values)


def _array_message(token_ids: Any) -> Any:
    """The ids as a MessagePack array, which vLLM's encoder copies into its message unchanged."""
    import msgspec

    items = np.empty(len(token_ids), _PACKED_ID)
    items["type"] = 0xCE  # an unsigned integer of 32 bits
    items["value"] = token_ids
    return msgspec.Raw(b"\xdd" + len(token_ids).to_bytes(4, "big") + items.tobytes())


_PACKED_ID = np.dtype([("type", "u1"), ("value", ">u4")])


def _fields(params: SamplingParams) -> dict[str, Any]:
    """The fields that the request sets, in vLLM's types. vLLM treats an empty list as set."""
    fields = _set_fields(params)
    if params.seed is not None:
        fields["seed"] = params.seed & SEED_MASK
    if params.structured_outputs is not None:
        fields["structured_outputs"] = _structured_outputs(params.structured_outputs)
    if params.repetition_detection is not None:
        fields["repetition_detection"] = _repetition_detection(params.repetition_detection)
    if params.extra_args is not None:
        fields["extra_args"] = _extra_args(params.extra_args)
    if params.logprob_token_ids:  # instead of the most likely tokens, as vLLM's own server does
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
        # vLLM 0.32 accepts and ignores them.
        raise ValueError("structured_outputs: vLLM does not support whitespace rules per request")
    return StructuredOutputsParams(**_set_fields(structured))


def _repetition_detection(wanted: Mapping[str, int]) -> Any:
    from vllm.sampling_params import RepetitionDetectionParams

    # RepetitionDetectionParams ignores unknown keys.
    known = {field.name for field in dataclasses.fields(RepetitionDetectionParams)}
    if unknown := wanted.keys() - known:
        raise ValueError(f"repetition_detection: unknown keys: {', '.join(sorted(unknown))}")
    try:
        return RepetitionDetectionParams(**wanted)
    except versions.client_error() as error:  # its message names no field
        raise ValueError(f"repetition_detection: {error.args[0]}") from error


def _extra_args(given: Mapping[str, Any]) -> dict[str, Any]:
    """Only arguments for plug-ins: clients must not control the engine itself."""
    for name, value in given.items():
        if name in RESERVED_ARGS:
            raise ValueError(f"extra_args: {name} is reserved for the gateway")
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, str | int | float):
                raise ValueError(
                    f"extra_args: {name} must be a string, number, boolean or a list of these"
                )
            if isinstance(each, int) and not -(2**63) <= each < 2**64:
                raise ValueError(f"extra_args: {name} does not fit into 64 bits")
    return dict(given)


def check_bad_words(params: Any) -> None:
    """Raises ValueError if the tokens of `bad_words`, which vLLM has computed by now, would crash
    vLLM's GPU worker.
    """
    most = versions.max_bad_words_tokens()
    if sum(map(len, params.bad_words_token_ids or ())) > most:
        raise ValueError(f"bad_words: at most {most} tokens in total")


def prompt(text: str | None, token_ids: Sequence[int] | None, cache_salt: str | None = None) -> Any:
    """Return vLLM's input. vLLM tokenizes text in a thread; token ids need no work."""
    from vllm.inputs import TextPrompt
    from vllm.inputs.engine import tokens_input

    if token_ids is not None:
        return tokens_input(list(token_ids), cache_salt=cache_salt)
    salt = {} if cache_salt is None else {"cache_salt": cache_salt}
    return TextPrompt(prompt=text or "", **salt)


def check_token_ids(token_ids: Sequence[int] | None) -> None:
    """Raises ValueError for a negative id, which vLLM before 0.28 passes on to its worker."""
    if token_ids and (lowest := min(token_ids)) < 0:
        raise ValueError(f"prompt_token_ids: {lowest} is not a token id")


def second_type_from(token_type_ids: Sequence[int]) -> int:
    """Return the index of the first token of type 1, which is all that vLLM gets of the types."""
    first = token_type_ids.index(1) if 1 in token_type_ids else len(token_type_ids)
    if list(token_type_ids) != [0] * first + [1] * (len(token_type_ids) - first):
        raise ValueError("token_type_ids: expected zeros followed by ones")
    return first


def delta(output: Any) -> CompletionDelta:
    """Convert what a RequestOutput adds."""
    completion = output.outputs[0]
    result = CompletionDelta(
        completion.text,
        completion.token_ids,
        logprobs=_logprobs(completion.logprobs),
        prompt_logprobs=_logprobs(output.prompt_logprobs or None),  # [] after the first output
    )
    if completion.finish_reason is not None:
        result.finish_reason = finish_reason(completion.finish_reason, completion.stop_reason)
        result.stop_reason = completion.stop_reason
        result.counts = prompt_counts(output)
    return result


def prompt_counts(output: Any) -> TokenCounts:
    """The counts of a RequestOutput's prompt, which its first output has already."""
    return TokenCounts(
        prompt_tokens=len(output.prompt_token_ids or ()),
        cached_tokens=output.num_cached_tokens or 0,
        kv_transfer_params=output.kv_transfer_params,
    )


def finish_reason(reason: object, stop_reason: object) -> Any:
    """Convert vLLM's finish reason.

    Raises EngineError if the engine gave up the request, ConstraintError if its grammar is
    the reason.
    """
    name = str(reason)
    if name in ("stop", "length"):
        return name
    if name == "repetition":
        return "stop"
    if stop_reason == GRAMMAR_FAILED:
        raise ConstraintError("structured_outputs: the engine failed to compile the grammar")
    if stop_reason == GRAMMAR_EXCEEDED:
        raise ConstraintError(
            "structured_outputs: the grammar became too large or too slow within the answer. Make"
            " it less ambiguous: each text should have one reading."
        )
    if stop_reason == GRAMMAR_EXCLUDED:
        raise ConstraintError(
            "structured_outputs: no token of allowed_token_ids continues the output. Leave"
            " allowed_token_ids out, or add the tokens that the constraint needs."
        )
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


class translate_errors:
    """Convert vLLM's exceptions: a dead engine to unavailable, a refused request to ValueError.

    `params` are vLLM's for this request.
    """

    __slots__ = ("_params",)

    def __init__(self, params: Any = None) -> None:
        self._params = params

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception):
            return
        found = translated(error, self._params)
        try:
            if found is not error:
                raise found from error
        finally:  # this frame is in the traceback: the cycle would keep the engine
            del found, error, trace


def translated(error: Exception, params: Any = None) -> Exception:
    """The exception that `translate_errors` raises for this one; the same one if it keeps it."""
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    if isinstance(error, EngineDeadError):
        # vLLM raises it from a variable: the cycle would keep the engine's threads and descriptors
        traceback.clear_frames(error.__traceback__)
        return EngineError(ENGINE_DIED, error_codes.UNAVAILABLE)
    if isinstance(error, versions.client_error()):
        kind = ConstraintError if _is_of_constraint(error) else ValueError
        return kind(_message(error, params))
    if isinstance(error, versions.generation_error()):
        retryable = getattr(error, "status_code", None) == HTTPStatus.SERVICE_UNAVAILABLE
        code = error_codes.UNAVAILABLE if retryable else error_codes.INTERNAL
        return EngineError(f"the engine ended the request: {error}", code)
    if isinstance(error, EngineGenerateError):
        # AsyncLLM wraps the cause in an exception without a message.
        cause = error.__cause__
        return _unwrapped(cause) if isinstance(cause, Exception) else error
    return _unwrapped(error)


def _unwrapped(error: Exception) -> Exception:
    if isinstance(error, OverflowError):  # from the encoder between vLLM's processes
        return ValueError(f"a number in the request is too large: {error}")
    return error


def _is_of_constraint(error: BaseException) -> bool:
    """Whether vLLM's check of constraints raised it. Its text does not say so: it may quote a
    request.
    """
    return any(
        frame.f_code.co_name.startswith("_validate_structured_output")
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )


def _message(error: Any, params: Any) -> str:
    """vLLM's message without the refused value, prefixed with the field if the message does not
    name it.
    """
    message, parameter = str(error.args[0]) if error.args else "", getattr(error, "parameter", None)
    if parameter is None and getattr(params, "structured_outputs", None) is not None:
        # vLLM's checks of grammars name no field, and its last backend seldom knows what is wrong.
        parameter, message = "structured_outputs", _reason_of_xgrammar(error) or message
    if parameter is None or message.startswith(f"{parameter}: "):
        return message
    return f"{parameter}: {message}"


def _reason_of_xgrammar(error: BaseException | None) -> str | None:
    """The first xgrammar error in the chain of causes."""
    while error is not None:
        if (reason := reason_of_xgrammar(error)) is not None:
            return reason
        error = error.__cause__ or error.__context__
    return None
