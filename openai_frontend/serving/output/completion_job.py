"""One request's answers: how they are generated, and what they have come to so far."""

import hashlib
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from openai_frontend import __version__
from openai_frontend.admission.limits import QueueKey
from openai_frontend.errors import InferenceFailed, InvalidRequest
from openai_frontend.generation import (
    CompletionDelta,
    GenerationRequest,
    SamplingParams,
    SequenceDelta,
    TextRelay,
    UsageCounter,
)
from openai_frontend.models.served_model import ServedModel
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.serving.admission.concurrency_limit import Bursts, Deltas, ModelSlots
from openai_frontend.serving.constraints import NO_CONSTRAINT, Constraint
from openai_frontend.serving.output.output_parsing import ParsedDelta, ParserConfig
from openai_frontend.serving.request.response_options import ResponseOptions, counts_on
from openai_frontend.serving.request.sampling import (
    REQUEST_NAMES,
    check_supported,
    for_choice,
    unsupported,
)
from schemas.chat_completions import FinishReason
from schemas.sampling import SamplingFields
from schemas.usage import CompletionTokensDetails, CompletionUsage, PromptTokensDetails

_FINISH_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionJob:
    """The answers to one request, prompt-major: `n` to the first prompt, `n` to the second, ..."""

    id: str
    model: ServedModel
    slots: ModelSlots
    requests: Sequence[GenerationRequest]
    n: int = 1
    kept: int | None = None  # of the `n`, the likeliest (`best_of`); None: all
    details: ResponseOptions = field(default_factory=ResponseOptions)
    echo: Sequence[str] = ()  # what stands before each prompt's answers; empty: nothing
    reading: ParserConfig | None = None  # None: the text is the answer, as it comes
    adjusted: Mapping[str, str] = field(default_factory=dict)  # hints that the model got otherwise
    created: int = field(default_factory=lambda: int(time.time()))

    def bursts(self) -> Bursts:
        """The deltas of every choice as they come; closing it ends the generation.

        Where the answer is read, they are `ParsedDelta`s.
        """
        if self.requests[0].sequences > 1:
            asked = [self._deltas(each) for each in self.requests[:: self.n]]
            return _split_sequences(self.slots.bursts(asked, self._turn()), self.n)
        return self.slots.bursts([self._deltas(each) for each in self.requests], self._turn())

    def _turn(self) -> QueueKey:
        return self.model.turn(self.requests[0].priority)

    def _deltas(self, request: GenerationRequest) -> Deltas:
        generation = self.model.generate(request)
        return generation if self.reading is None else self.reading.read(generation, request)

    def tally(self) -> "CompletionProgress":
        """Counts for this answer, before its first token."""
        return CompletionProgress(
            [len(each.prompt_token_ids or ()) for each in self.requests], n=self.n
        )

    def fields(self) -> dict[str, Any]:
        """What a whole answer and each chunk of a streamed one begin with."""
        fields = {
            "id": self.id,
            "created": self.created,
            "model": self.model.name,
            "system_fingerprint": _fingerprint(self.model.name, self.model.created),
        }
        return {**fields, "service_tier": "default"} if self.details.service_tier else fields

    def prompt_token_ids(self, choice: int) -> list[int]:
        """The prompt of a choice; empty where the model takes text alone."""
        return list(self.requests[choice].prompt_token_ids or ())

    def echoed(self, choice: int) -> str:
        """The prompt that stands before a choice's text, if it does."""
        return self.echo[choice // self.n] if self.echo else ""


async def _split_sequences(bursts: Bursts, n: int) -> Bursts:
    """The same deltas, each under the index of its choice: a request has `n` of them."""
    async with aclosing(bursts):
        async for burst in bursts:
            yield [
                (at * n + (delta.sequence if isinstance(delta, SequenceDelta) else 0), [delta])
                for at, deltas in burst
                for delta in deltas
            ]


def new_id(prefix: str) -> str:
    """An id of our own: the client's request id need not be unique, the engine's must be."""
    return f"{prefix}-{random.getrandbits(128):032x}"


def request_id(id: str, at: int, *, prompts: int) -> str:
    """The id of a prompt's request: the answer's own, numbered if there are several prompts."""
    return id if prompts == 1 else f"{id}-{at}"


@lru_cache(maxsize=64)
def _fingerprint(model: str, created: int) -> str:
    """Changes when the gateway or the loaded model does: then a seed may give another answer."""
    digest = hashlib.sha256(f"{__version__}/{model}/{created}".encode())
    return f"fp_{digest.hexdigest()[:12]}"


def first_request(
    id: str,
    prompt: Prompt,
    params: SamplingParams,
    request: SamplingFields,
    answer: ResponseOptions,
    held: Constraint,
) -> GenerationRequest:
    """The request for a prompt's first choice; the others differ in id and seed alone."""
    return GenerationRequest(
        request_id=id,
        prompt=prompt.text,
        prompt_token_ids=prompt.token_ids or None,
        sampling_params=params,
        stream=bool(request.stream),
        return_token_ids=answer.needs_token_ids,
        priority=request.priority or 0,
        cache_salt=request.cache_salt,
        stream_interval=answer.interval if answer.gathered else 1,
        field_names=_field_names(held),
        relay=TextRelay() if request.stream else None,
        usage=UsageCounter(len(prompt.token_ids)),
    )


def _field_names(held: Constraint) -> dict[str, str]:
    """What this request calls fields that the engine has another name for."""
    if held is NO_CONSTRAINT:
        return REQUEST_NAMES
    return {**REQUEST_NAMES, "structured_outputs": held.param, **held.field_names}


def choice_requests(first: GenerationRequest, n: int) -> list[GenerationRequest]:
    """`n` requests for one prompt, with seeds seed, seed + 1, ... A beam search is one request, of
    which each choice reads its own sequence.
    """
    if n == 1:
        return [first]
    prompt_tokens = len(first.prompt_token_ids or ())
    if first.sampling_params.beam_width is not None:
        return [replace(first, sequences=n, usage=UsageCounter(prompt_tokens, sequences=n))] * n
    id, params = first.request_id, first.sampling_params
    return [
        replace(
            first,
            request_id=f"{id}-{choice}",
            sampling_params=for_choice(params, choice),
            usage=UsageCounter(prompt_tokens),
        )
        for choice in range(n)
    ]


def require_generation(model: ServedModel) -> None:
    """Raises for a model that writes no text, such as one of embeddings."""
    if "generate" not in model.tasks:
        message = f"The model '{model.name}' does not generate text."
        raise InvalidRequest(message, param="model", code="unsupported_model")


_BESIDE_SAMPLING = {
    "add_special_tokens",
    "priority",
    "cache_salt",
    "return_token_ids",
    "prompt_logprobs",
    "stream_options",
}


def check_request_fields(
    request: SamplingFields, model: ServedModel, *, special_tokens: bool
) -> None:
    """Raises for fields of a request, beside its sampling, that the model cannot honour.

    `special_tokens`: whether a tokenizer adds its own to a prompt of this kind, unless told.
    """
    if not request.model_fields_set & _BESIDE_SAMPLING:
        return
    reads_ids = model.supports("prompt_token_ids")  # else its own tokenizer does as it does
    if request.add_special_tokens not in (None, special_tokens) and not reads_ids:
        raise unsupported("add_special_tokens")
    if counts_on(request.stream_options) and not any(
        map(model.supports, ("return_token_ids", "running_counts"))
    ):
        raise unsupported("stream_options.continuous_usage_stats")
    given = {
        "priority": request.priority,
        "cache_salt": request.cache_salt,
        "return_token_ids": request.return_token_ids,
        "prompt_logprobs": request.prompt_logprobs is not None,
    }
    check_supported([name for name, value in given.items() if value], model)


def count_prompt_logprobs(params: SamplingParams, prompt_tokens: int, model: ServedModel) -> int:
    """How many there will be for so many tokens: each token's own, and its alternatives."""
    asked = params.prompt_logprobs
    if asked is None:
        return 0
    return prompt_tokens * (1 + (asked if asked >= 0 else model.vocab_size or 1))


class CompletionProgress:
    """Which choices have ended, and the tokens that the client has been told of.

    Fed with every delta that tells either: a stream may say what it has told so far.
    """

    def __init__(self, prompt_tokens: Sequence[int], *, n: int) -> None:
        """`prompt_tokens` has a number for each choice; `n` choices share a prompt."""
        self._n = n
        self._told = [UsageCounter(tokens) for tokens in prompt_tokens]
        self._reasoning_tokens = 0
        self._metrics: dict[int, Mapping[str, int | float]] = {}  # by choice, where asked for

    @property
    def finished(self) -> bool:
        """True once every choice has its finish reason."""
        return all(choice.finished for choice in self._told)

    def add(self, choice: int, delta: CompletionDelta) -> FinishReason | None:
        """Counts a delta; the finish reason where it is the choice's last."""
        self._told[choice].add((delta,))
        counts = delta.counts
        if counts is not None and counts.metrics:
            self._metrics[choice] = counts.metrics
        calls = None
        if isinstance(delta, ParsedDelta):
            self._reasoning_tokens += delta.reasoning_tokens
            calls = delta.calls
        if delta.finish_reason is None:
            return None
        reason = _FINISH_REASONS.get(delta.finish_reason)
        if reason is None:
            raise InferenceFailed(f"the engine ended a request with {delta.finish_reason!r}")
        return calls or reason

    def check_finished(self) -> None:
        """Raises where a choice's stream ended without a finish reason: never pretend one."""
        if not self.finished:
            raise InferenceFailed("the model's answer ended without a finish reason")

    def usage(self) -> CompletionUsage:
        """A prompt counts once, however many choices it has."""
        prompt_tokens = sum(choice.prompt_tokens for choice in self._told[:: self._n])
        cached_tokens = sum(choice.cached_tokens for choice in self._told[:: self._n])
        completion_tokens = sum(choice.completion_tokens for choice in self._told)
        return CompletionUsage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens),
            completion_tokens_details=CompletionTokensDetails(
                reasoning_tokens=self._reasoning_tokens,
                accepted_prediction_tokens=0,
                rejected_prediction_tokens=0,
            ),
            **self._performance(),
        )

    def _performance(self) -> dict[str, Any]:
        """A mapping for each choice that was told of."""
        told = [dict(self._metrics[choice]) for choice in sorted(self._metrics)]
        return {"performance_metrics": told} if told else {}
