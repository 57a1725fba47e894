"""The narrow waist between what OpenAI's fields mean and what a model's tensors hold.

Everything above this file speaks OpenAI, everything below it speaks tensors. No HTTP, no Triton.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns
from typing import Any, Literal, Protocol

FinishReason = Literal["stop", "length", "abort"]
# token id -> {"logprob": float, "rank": int, "decoded_token": str | None}, the token's own first
TokenLogprobs = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    """What the answer must be; exactly one of the first six is set. Names are vLLM's."""

    json: str | Mapping[str, Any] | None = None  # a JSON schema
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None  # EBNF or Lark
    json_object: bool | None = None  # any JSON object
    structural_tag: str | None = None  # xgrammar's, as JSON text
    disable_any_whitespace: bool = False
    whitespace_pattern: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen; names and meanings are vLLM's. None leaves the engine's own
    default.
    """

    max_tokens: int | None = None  # None: until the context is full; 0: the prompt is only read
    min_tokens: int = 0  # no stop token before this many tokens
    temperature: float | None = None  # 0 is greedy
    top_p: float | None = None
    top_k: int | None = None  # 0 or -1: all tokens
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    # So many of the likeliest whole answers are followed; None: tokens are sampled. This name and
    # the next are TensorRT-LLM's.
    beam_width: int | None = None
    length_penalty: float | None = None  # above 1, longer answers are likelier
    seed: int | None = None
    stop: Sequence[str] = ()  # texts that end the generation; not part of the output
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    bad_words: Sequence[str] = ()  # texts that the answer may not hold
    allowed_token_ids: Sequence[int] = ()  # empty: every token
    logit_bias: Mapping[int, float] | None = None  # token id -> what is added to its logit
    logprobs: int | None = None  # alternatives for each token; 0: the sampled token's only
    logprob_token_ids: Sequence[int] = ()  # tokens whose logprobs come with each token's own
    prompt_logprobs: int | None = None  # the same for the prompt's tokens; -1: all of them
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    structured_outputs: StructuredOutputs | None = None
    thinking_token_budget: int | None = None
    repetition_detection: Mapping[str, int] | None = None  # vLLM's RepetitionDetectionParams
    extra_args: Mapping[str, Any] | None = None  # for the engine's plug-ins (`vllm_xargs`)


@dataclass(slots=True, eq=False)
class ChunkedSocket:
    """A client's socket past the transport that owns it: a frame may go there as one chunk of
    HTTP/1.1 while the transport itself has nothing to write.
    """

    fd: int
    idle: Callable[[], bool]  # whether the transport has nothing to write
    write_rest: Callable[[bytes], None]  # through the transport: what the socket had no room for
    # Set by who writes to it: to be called before the transport writes, and before it closes.
    before_write: Callable[[], None] | None = None
    before_close: Callable[[], int | None] | None = None
    sent_bytes: int = 0  # past the transport; known once this is closed

    def close(self) -> None:
        """The answer is over, or the descriptor is about to be somebody else's."""
        self.fd = -1
        before_close, self.before_close, self.before_write = self.before_close, None, None
        self.idle, self.write_rest = _never, _nowhere  # they lead back to who holds this
        if before_close is not None:
            self.sent_bytes = before_close() or 0


def _never() -> bool:
    return False


def _nowhere(rest: bytes) -> None:
    """Nobody writes to a socket that is closed."""


# Takes a frame; True where it takes no other until the relay is resumed.
FrameWriter = Callable[[bytes], bool]
Resume = Callable[[], None]


class TextRelay:
    """The short way of a streamed answer: text that needs nothing but a frame around it goes to
    its writer as the model makes it, and past everything that reads deltas.

    Whoever runs the request offers the way; whoever streams the answer may take it, once deltas
    have begun to come.
    """

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: Callable[[bytes, bytes, FrameWriter, ChunkedSocket | None], Resume] | None
        self._open = None

    def offer(
        self, open: Callable[[bytes, bytes, FrameWriter, ChunkedSocket | None], Resume]
    ) -> None:
        """`open` begins to relay; it returns what resumes a relay that was held."""
        self._open = open

    def take(
        self, before: bytes, after: bytes, write: FrameWriter, socket: ChunkedSocket | None = None
    ) -> Resume | None:
        """From now on the deltas that hold text alone are frames: their text, that of several
        where they come together, as a JSON string between `before` and `after`.

        They go to `socket` where it has room, else to the writer. Returns what resumes a relay
        whose writer has held it; None where there is no short way.
        """
        return None if self._open is None else self._open(before, after, write, socket)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A LoRA adapter of a base model; requests name it `base:name`."""

    name: str
    # > 0; one for each name and content while the process lives: vLLM's lora_int_id,
    # TensorRT-LLM's lora_task_id
    id: int
    # Its folder (PEFT's, or TensorRT-LLM's model.lora_weights.npy and model.lora_config.npy); None
    # where the backend knows it by name
    path: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AdapterWeights:
    """What TensorRT-LLM is told of an adapter, as numpy arrays."""

    weights: Any  # [1, modules, values], of any type of floats; bfloat16 is a void of two bytes
    config: Any  # [1, modules, 3]: module, layer, size of the adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One prompt, one answer. `n` answers are `n` of these, with seeds `seed`, `seed + 1`, ..."""

    request_id: str
    prompt: str | None = None  # the rendered text; None where only token ids are known
    prompt_token_ids: Sequence[int] | None = None  # None where the model takes text only
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    stream: bool = False
    return_token_ids: bool = False  # each delta carries the ids of its tokens
    priority: int = 0  # lower numbers first; 0 is the model's default
    cache_salt: str | None = None  # only requests of one salt share the prefix cache
    sequences: int = 1  # answers to this one request: the first so many of a beam search
    sequence: int = 0  # which of them a decoder reads
    adapter: Adapter | None = None  # None: the base model's own weights
    # set where the model has to be told them: it has not been yet, or has forgotten them
    adapter_weights: AdapterWeights | None = None
    # what the caller calls a field of sampling_params, for the refusal that names it
    field_names: Mapping[str, str] = field(default_factory=dict)
    stream_interval: int = 1  # tokens for each delta of plain text; the first comes at once
    timeout_us: int = 0  # Triton's queue timeout in microseconds; 0: none
    relay: TextRelay | None = None  # for an answer of which the caller wants the text alone
    # counts this generation's tokens for all who report or charge them
    usage: "UsageCounter" = field(default_factory=lambda: UsageCounter(), compare=False)


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Token counts of one request; `completion_tokens` counts what a delta adds, the others are
    totals.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens that the engine's prefix cache held
    # how the answer was made, by the model's names; where the request asked for it
    metrics: Mapping[str, int | float] | None = None
    logits: Mapping[str, Any] | None = None  # output's name -> a tensor; the same
    # from the request to its first token, where an answer comes whole and its engine says so
    first_token_s: float | None = field(default=None, compare=False)


@dataclass(slots=True)
class CompletionDelta:
    """What one response adds to the answer. Not frozen: one is made for each token (0.3 us
    against 0.9).
    """

    text: str = ""
    token_ids: Sequence[int] = ()  # empty where the model does not report ids
    finish_reason: FinishReason | None = None  # set on the last delta alone
    stop_reason: int | str | None = None  # the stop token id or stop string that ended it
    counts: TokenCounts | None = None  # set on the last delta, on others where the model reports it
    logprobs: Sequence[TokenLogprobs] | None = None  # one for each of this delta's tokens
    # one for each of the prompt's tokens, None for the first; set on one delta of an answer
    prompt_logprobs: Sequence[TokenLogprobs | None] | None = None


@dataclass(slots=True)
class SequenceDelta(CompletionDelta):
    """A delta of one of a request's sequences."""

    sequence: int = 0


class ResponseCounter(Protocol):
    """A stream of responses, as far as counting needs it."""

    @property
    def received(self) -> int:
        """Responses that have come so far, those that were relayed included."""


@dataclass(frozen=True, slots=True)
class _Ended:
    received: int


class UsageCounter:
    """The tokens of one generation, counted once, and when the first one came.

    Metrics, the key's quota, the access log, the trace and the reader of the answer all read it.
    The served model adds what each wake-up brings.
    """

    __slots__ = (
        "_completion_tokens",
        "_stream",
        "_streamed",
        "_tokens_per_response",
        "_uncounted",
        "_unfinished",
        "begun_ns",
        "cached_tokens",
        "finish_reason",
        "first_token_ns",
        "prompt_tokens",
    )

    def __init__(self, prompt_tokens: int = 0, *, sequences: int = 1) -> None:
        """`prompt_tokens` holds until the model reports its own count."""
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = 0
        self.finish_reason: FinishReason | None = None  # of the sequence that finished last
        # By the monotonic clock; None before it comes, or where nobody knows when it came
        self.first_token_ns: int | None = None
        self.begun_ns = monotonic_ns()  # as `first_token_ns`
        self._streamed = True
        self._unfinished = sequences
        self._completion_tokens = 0
        self._uncounted = 0  # token ids that no counts cover yet
        self._stream: ResponseCounter = _Ended(0)
        self._tokens_per_response = 1

    def follow(
        self, stream: ResponseCounter, tokens_per_response: int = 1, *, streamed: bool = True
    ) -> None:
        """The request begins. Its responses are counted for as long as the model reports neither
        counts nor token ids; where the answer is not `streamed`, none of them is its first token.
        """
        self.begun_ns = monotonic_ns()
        self._streamed = streamed
        self._stream = stream
        self._tokens_per_response = tokens_per_response

    def add(self, deltas: Iterable[CompletionDelta]) -> None:
        """Count what one wake-up brought."""
        if self.first_token_ns is None and self._streamed:
            self.first_token_ns = monotonic_ns()
        for delta in deltas:
            if (counts := delta.counts) is not None:
                self.prompt_tokens = counts.prompt_tokens
                self.cached_tokens = counts.cached_tokens
                self._completion_tokens += counts.completion_tokens
                self._uncounted = 0
                if counts.first_token_s is not None:
                    self.first_token_ns = self.begun_ns + int(counts.first_token_s * 1e9)
            elif delta.token_ids:
                self._uncounted += len(delta.token_ids)
            if delta.finish_reason is not None:
                self.finish_reason = delta.finish_reason
                self._unfinished -= 1

    def finish(self, reason: FinishReason) -> None:
        """The answer is complete before the engine's own end, which nobody waits for."""
        if not self.finished:
            self._completion_tokens, self._uncounted = self.completion_tokens, 0
            self.finish_reason, self._unfinished = reason, 0

    def end(self) -> None:
        """Nothing more is added. Lets go of the stream."""
        self._stream = _Ended(self._stream.received)

    @property
    def received(self) -> int:
        """Responses that have come so far."""
        return self._stream.received

    @property
    def finished(self) -> bool:
        """Whether every sequence has its finish reason."""
        return self._unfinished <= 0

    @property
    def completion_tokens(self) -> int:
        """Tokens of the answer so far. Before the end of plain text, of which the model reports
        no counts, at least one for each response.
        """
        counted = self._completion_tokens + self._uncounted
        if self.finished or not (received := self._stream.received):
            return counted
        return max(counted, 1 + (received - 1) * self._tokens_per_response)


def merge_deltas(deltas: Sequence[CompletionDelta]) -> CompletionDelta:
    """One delta that says what all of them say; the counts are those of the last."""
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
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """One input, one vector."""

    request_id: str
    prompt: str | None = None
    prompt_token_ids: Sequence[int] | None = None
    dimensions: int | None = None  # None: the model's own


@dataclass(frozen=True, slots=True)
class EmbeddingResult:
    """The vector as little-endian float32, readable through the buffer protocol, and the
    prompt's count.
    """

    embedding: memoryview
    prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePairRequest:
    """A query and a document in one sequence, as a cross-encoder reads them; one score."""

    request_id: str
    prompt_token_ids: Sequence[int]
    token_type_ids: Sequence[int] | None = None  # 0 for the query's tokens, 1 for the document's


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """How relevant the document is (after the model's own activation), and the tokens read."""

    score: float
    prompt_tokens: int
