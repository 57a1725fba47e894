"""Requests to models and their results: the interface between serving and tensors.

Modules above this file know OpenAI's fields, modules below it know tensors. No HTTP, no Triton.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns
from typing import Any, Literal, Protocol

from openai_frontend.media.modalities import AudioFile, AudioInput, ImageInput
from openai_frontend.text_relay import TextRelay

# "content_filter" is a guard's; models end with the others
FinishReason = Literal["stop", "length", "abort", "content_filter"]
# token id -> {"logprob": float, "rank": int, "decoded_token": str | None}; the sampled token first
TokenLogprobs = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    """Constraint on the output; exactly one of the first six is set. Names are vLLM's."""

    json: str | Mapping[str, Any] | None = None  # a JSON schema
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None  # EBNF or Lark
    json_object: bool | None = None  # any JSON object
    structural_tag: str | None = None  # xgrammar's, as JSON text
    disable_any_whitespace: bool = False
    whitespace_pattern: str | None = None


class ConstraintFallback(Protocol):
    """Looser constraints, for an engine that refuses a request's own."""

    @property
    def current(self) -> tuple[StructuredOutputs, Mapping[str, str]] | None:
        """The constraint to use with its `field_names`; None: the request's own."""

    def after(self, refused: StructuredOutputs | None, param: str | None) -> bool:
        """Make `current` looser: the engine refused this constraint, for the request field `param`
        if known. False if that is impossible.
        """

    def for_any_engine(self) -> "ConstraintFallback | None":
        """A copy, with a constraint that every engine can enforce, and no effect on other requests.
        None if this one has no tighter constraint.
        """


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """vLLM's sampling parameters. None means the engine's default.

    Nothing changes one. It is not frozen, like the other classes of which each request has one,
    because that makes an object in 0.5 us instead of 2.2.
    """

    max_tokens: int | None = None  # None: until the context is full; 0: no output
    min_tokens: int = 0  # no stop token before this many tokens
    temperature: float | None = None  # 0 is greedy
    top_p: float | None = None
    top_k: int | None = None  # 0 or -1: all tokens
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    # Beams of a beam search; None: sampling. This and the next name are TensorRT-LLM's.
    beam_width: int | None = None
    length_penalty: float | None = None  # above 1 favours longer outputs
    seed: int | None = None
    stop: Sequence[str] = ()  # strings that end the generation; not part of the output
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    bad_words: Sequence[str] = ()  # strings that the output must not contain
    allowed_token_ids: Sequence[int] = ()  # empty: all tokens
    logit_bias: Mapping[int, float] | None = None  # token id -> value added to its logit
    logprobs: int | None = None  # alternatives per token; 0: the sampled token only
    logprob_token_ids: Sequence[int] = ()  # tokens whose logprobs are reported at each position
    prompt_logprobs: int | None = None  # alternatives per prompt token; -1: all
    skip_special_tokens: bool | None = None  # None: what the model says, else yes
    spaces_between_special_tokens: bool = True
    structured_outputs: StructuredOutputs | None = None
    thinking_token_budget: int | None = None
    repetition_detection: Mapping[str, int] | None = None  # vLLM's RepetitionDetectionParams
    extra_args: Mapping[str, Any] | None = None  # for plug-ins of the engine (`vllm_xargs`)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A LoRA adapter of a base model; requests name it `base:name`."""

    name: str
    # > 0, unique per name and content in this process: vLLM's lora_int_id, TensorRT-LLM's
    # lora_task_id
    id: int
    # Folder in PEFT's format, or with TensorRT-LLM's model.lora_weights.npy and
    # model.lora_config.npy; None if the backend knows the adapter by name
    path: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class AdapterWeights:
    """TensorRT-LLM's input for an adapter, as numpy arrays."""

    weights: Any  # [1, modules, values], any float type; bfloat16 is a two-byte void
    config: Any  # [1, modules, 3]: module, layer, size of the adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTransfer:
    """The KV cache of a prompt, which one engine computes and another reads. Never a client's."""

    # vLLM's kv_transfer_params: do_remote_decode asks an engine to keep the cache for another one,
    # whose request has what the first one's response reports
    params: Mapping[str, Any]
    expires_ns: int = 0  # monotonic; afterwards, the engine computes the prompt itself. 0: never
    rejected: bool = False  # generate nothing, only tell the other engine that it is not needed


# Members of vLLM's `extra_args` that control transfers of cache blocks: vLLM's own (0.33,
# v1/request.py), and when the gateway stops using a transfer. Never a client's, of any backend.
KV_TRANSFER_PARAMS = "kv_transfer_params"
KV_TRANSFER_EXPIRES = "kv_transfer_expires_ns"
RESERVED_ARGS = frozenset(
    {KV_TRANSFER_PARAMS, KV_TRANSFER_EXPIRES, "ec_transfer_params", "kv_cache_report_mode"}
)

# For the engine that computes the prompt
REMOTE_DECODE = KVTransfer(
    params=dict.fromkeys(
        ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"), None
    )
    | {"do_remote_decode": True, "do_remote_prefill": False}
)


@dataclass(slots=True, kw_only=True)
class GenerationRequest:
    """One prompt, one output. `n` choices are `n` requests with seeds `seed`, `seed + 1`, ..."""

    request_id: str
    caller_id: str = ""  # in an engine: the id in Triton, which the caller knows
    prompt: str | None = None  # rendered text; None if only token ids are known
    prompt_token_ids: Sequence[int] | None = None  # None if the model accepts only text
    images: Sequence[ImageInput] = ()  # in the order of their placeholders in the prompt
    audio_files: Sequence[AudioFile] = ()  # in the order of their placeholders in the prompt
    audio: AudioInput | None = None  # the input of a transcription model
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    stream: bool = False
    return_token_ids: bool = False  # report token ids in each delta
    count_tokens: bool = False  # report those of deltas that are not of one token
    count_prompt: bool = False  # report the prompt's counts with the first delta, if they are known
    logprob_arrays: bool = False  # log probabilities as arrays, without the tokens' texts
    priority: int = 0  # lower numbers first; 0 is the model's default
    cache_salt: str | None = None  # only requests with the same salt share the engine's caches
    cache_owner: str | None = None  # the key that shares them with no other; None: all others
    sequences: int = 1  # outputs of this request: the best ones of a beam search
    sequence: int = 0  # the one that a decoder reads
    adapter: Adapter | None = None  # None: the base model's own weights
    # set if the backend does not have them, or has evicted them
    adapter_weights: AdapterWeights | None = None
    # field of sampling_params -> the request's name for it, for error messages
    field_names: Mapping[str, str] = field(default_factory=dict)
    # None: a constraint that the engine refuses is the client's error
    fallback: ConstraintFallback | None = field(default=None, compare=False)
    stream_interval: int = 1  # tokens per delta of plain text; the first is sent at once
    timeout_us: int = 0  # Triton's queue timeout in microseconds; 0: none
    relay: TextRelay | None = None  # for a response that needs only text
    kv_transfer: KVTransfer | None = None  # None: the engine computes the prompt for itself
    # token counts for metrics, quotas, logs and the response
    usage: "UsageCounter" = field(default_factory=lambda: UsageCounter(), compare=False)


@dataclass(slots=True)
class TokenCounts:
    """Token counts of one request. `completion_tokens` is the delta's, the others are totals."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens found in the engine's prefix cache
    image_tokens: int = 0  # prompt tokens that stand for images
    audio_tokens: int = 0  # prompt tokens that stand for audio
    # performance metrics under the model's names, if requested
    metrics: Mapping[str, int | float] | None = None
    logits: Mapping[str, Any] | None = None  # output name -> tensor, if requested
    # prompt tokens whose KV cache another engine computed; None: not reported
    transferred_tokens: int | None = None
    kv_transfer_params: Mapping[str, Any] | None = None  # for the engine that reads the KV cache
    # time to first token, if the output is not streamed and the engine reports it
    first_token_s: float | None = field(default=None, compare=False)


@dataclass(slots=True)
class LogprobArrays:
    """Log probabilities of several tokens: for each an array with the sampled token first. An array
    may have the sampled token again, among the likeliest.
    """

    token_ids: Sequence[Sequence[int]]
    values: Sequence[Sequence[float]]


@dataclass(slots=True)
class CompletionDelta:
    """Part of the output that one response adds. Not frozen: it is built per token (0.3 us, not
    0.9).
    """

    text: str = ""
    token_ids: Sequence[int] = ()  # empty if the model does not report ids
    finish_reason: FinishReason | None = None  # set on the last delta only
    stop_reason: int | str | None = None  # the stop token id or stop string
    counts: TokenCounts | None = None  # on the last delta, and on others if reported
    logprobs: Sequence[TokenLogprobs] | None = None  # one per token of this delta
    # one per prompt token, None for the first; set on one delta of an output
    prompt_logprobs: Sequence[TokenLogprobs | None] | None = None
    logprob_arrays: LogprobArrays | None = None  # instead of `logprobs`, from an engine
    tokens: int = 0  # their number, if it is known without their ids
    relayed: bool = False  # the text was written to the client already, see SegmentRelay


@dataclass(slots=True)
class SequenceDelta(CompletionDelta):
    sequence: int = 0


class ResponseCounter(Protocol):
    """A stream that counts its responses."""

    @property
    def received(self) -> int:
        """Responses received, including relayed ones."""


@dataclass(frozen=True, slots=True)
class _Ended:
    received: int


class UsageCounter:
    """Token counts of one generation, and the time of its first token.

    Metrics, the key's quota, the access log, the trace and the response read it. The served model
    adds the deltas of each wake-up.
    """

    __slots__ = (
        "_completion_tokens",
        "_stream",
        "_streamed",
        "_tokens_per_response",
        "_uncounted",
        "_unfinished",
        "audio_tokens",
        "begun_ns",
        "cached_tokens",
        "finish_reason",
        "first_token_ns",
        "image_tokens",
        "prompt_counted",
        "prompt_tokens",
        "transferred_tokens",
    )

    def __init__(self, prompt_tokens: int = 0, *, sequences: int = 1) -> None:
        """`prompt_tokens` is used until the model reports its own count."""
        self.prompt_tokens = prompt_tokens
        self.prompt_counted = False  # whether the model has reported it
        self.cached_tokens = 0
        self.transferred_tokens: int | None = None  # None: not reported
        self.image_tokens = self.audio_tokens = 0
        self.finish_reason: FinishReason | None = None  # of the sequence that finished last
        # Monotonic time; None before the first token, or if its time is unknown
        self.first_token_ns: int | None = None
        self.begun_ns = monotonic_ns()  # monotonic time
        self._streamed = True
        self._unfinished = sequences
        self._completion_tokens = 0
        self._uncounted = 0  # token ids not covered by reported counts yet
        self._stream: ResponseCounter = _Ended(0)
        self._tokens_per_response = 1

    def follow(
        self, stream: ResponseCounter, tokens_per_response: int = 1, *, streamed: bool = True
    ) -> None:
        """Start counting a request. Responses count as tokens while the model reports neither
        counts nor token ids. If the output is not `streamed`, the first response does not set
        `first_token_ns`.
        """
        self.begun_ns = monotonic_ns()
        self._streamed = streamed
        self._stream = stream
        self._tokens_per_response = tokens_per_response

    def add(self, deltas: Iterable[CompletionDelta]) -> None:
        """Count the deltas of one wake-up."""
        if self.first_token_ns is None and self._streamed:
            self.first_token_ns = monotonic_ns()
        for delta in deltas:
            if (counts := delta.counts) is not None:
                self.prompt_tokens, self.prompt_counted = counts.prompt_tokens, True
                self.cached_tokens = counts.cached_tokens
                self.transferred_tokens = counts.transferred_tokens
                self.image_tokens = counts.image_tokens
                self.audio_tokens = counts.audio_tokens
                self._completion_tokens += counts.completion_tokens
                self._uncounted = 0
                if counts.first_token_s is not None:
                    self.first_token_ns = self.begun_ns + int(counts.first_token_s * 1e9)
            else:
                self._uncounted += len(delta.token_ids) or delta.tokens
            if delta.finish_reason is not None:
                self.finish_reason = delta.finish_reason
                self._unfinished -= 1

    def finish(self, reason: FinishReason, tokens: int = 0) -> None:
        """The output is complete before the engine ends the request.

        `tokens`: those up to its end; 0 if they are not known. The engine may be ahead, by a number
        that depends on how busy the process is.
        """
        if not self.finished:
            self._completion_tokens, self._uncounted = tokens or self.completion_tokens, 0
            self.finish_reason, self._unfinished = reason, 0

    def end(self) -> None:
        """Stop counting and release the stream."""
        self._stream = _Ended(self._stream.received)

    @property
    def received(self) -> int:
        return self._stream.received

    @property
    def finished(self) -> bool:
        """Whether every sequence has its finish reason."""
        return self._unfinished <= 0

    @property
    def completion_tokens(self) -> int:
        """Tokens of the output so far. While the model reports no counts, at least one for each
        response of plain text.
        """
        counted = self._completion_tokens + self._uncounted
        if self._unfinished <= 0 or not (received := self._stream.received):
            return counted
        return max(counted, 1 + (received - 1) * self._tokens_per_response)


def _merge_arrays(deltas: Sequence[CompletionDelta]) -> LogprobArrays | None:
    arrays = [delta.logprob_arrays for delta in deltas if delta.logprob_arrays is not None]
    if not arrays:
        return None
    return LogprobArrays(
        [row for each in arrays for row in each.token_ids],
        [row for each in arrays for row in each.values],
    )


def merge_deltas(deltas: Sequence[CompletionDelta]) -> CompletionDelta:
    """Merge deltas into one; the counts are those of the last."""
    last = deltas[-1]
    prompts = (delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs is not None)
    return CompletionDelta(
        text="".join([delta.text for delta in deltas]),
        token_ids=[token for delta in deltas for token in delta.token_ids],
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        counts=last.counts,
        logprobs=[entry for delta in deltas for entry in delta.logprobs or ()] or None,
        prompt_logprobs=next(prompts, None),
        logprob_arrays=_merge_arrays(deltas),
    )
