"""The narrow waist between what OpenAI's fields mean and what a model's tensors hold.

Everything above this file speaks OpenAI, everything below it speaks tensors. No HTTP, no Triton.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen; names and meanings are vLLM's. None leaves the engine's own
    default.
    """

    max_tokens: int | None = None  # None: until the context is full
    min_tokens: int = 0  # no stop token before this many tokens
    temperature: float | None = None  # 0 is greedy
    top_p: float | None = None
    top_k: int | None = None  # 0 or -1: all tokens
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: Sequence[str] = ()  # texts that end the generation; not part of the output
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # alternatives for each token; 0: the sampled token's only


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One prompt, one answer. `n` answers are `n` of these, with seeds `seed`, `seed + 1`, ..."""

    request_id: str
    prompt: str | None = None  # the rendered text; None where only token ids are known
    prompt_token_ids: Sequence[int] | None = None  # None where the model takes text only
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    stream: bool = False
    return_token_ids: bool = False  # each delta carries the ids of its tokens
    priority: int = 0  # Triton's: lower numbers first, 0 is the model's default
    timeout_us: int = 0  # Triton's queue timeout in microseconds; 0: none


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Token counts of one request; `completion_tokens` counts what a delta adds, the others are
    totals.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens that the engine's prefix cache held


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
    logprobs: Sequence[Mapping[int, Mapping[str, Any]]] | None = None  # one mapping a token


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest:
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
