"""One request on its way to a model: its generations, ids and prompts, and its progress."""

import random
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol

from openai_frontend.errors import InferenceFailed, InvalidRequest
from openai_frontend.generation import (
    CompletionDelta,
    GenerationRequest,
    SamplingParams,
    SequenceDelta,
    UsageCounter,
)
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.request_context.context import RequestContext
from openai_frontend.serving.admission.concurrency_limit import Bursts, Deltas
from openai_frontend.serving.admission.model import Describes, ServingModel
from openai_frontend.serving.admission.permit import Admission, ReadDeltas
from openai_frontend.serving.output.output_parsing import ParsedDelta, ParserConfig
from openai_frontend.serving.request.response_options import (
    ResponseOptions,
    reports_continuous_usage,
)
from openai_frontend.serving.request.sampling import (
    NO_CONSTRAINT,
    REQUEST_NAMES,
    Constraint,
    check_supported,
    for_choice,
    unsupported,
)
from openai_frontend.serving.request.tools import NO_TOOLS, Tools
from openai_frontend.text_relay import TextRelay
from schemas.sampling import SamplingFields

# "calls": with complete calls; "content_filter": a guard blocked the rest
EndReason = Literal["stop", "length", "calls", "content_filter"]
_ENDS: dict[str, EndReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
}


class OutputEnd(NamedTuple):
    """Why a choice's output ended."""

    reason: EndReason
    stopped_by: int | str | None = None  # the stop token id or stop string, if one matched


STOPPED = OutputEnd("stop")


@dataclass(slots=True, kw_only=True)
class Usage:
    """Token counts of a job. A prompt counts once, however many choices it has."""

    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompts
    image_tokens: int = 0  # of the prompts
    audio_tokens: int = 0  # of the prompts
    completion_tokens: int = 0
    reasoning_tokens: int = 0  # of the outputs
    # The model's own measurements, one of each choice that reported some
    performance_metrics: Sequence[Mapping[str, int | float]] = ()


class CompletionProgress:
    """Ends and token counts of a job's choices. Add every delta that has either."""

    def __init__(self, requests: Sequence[GenerationRequest], *, n: int, running: bool) -> None:
        """`n` choices share a prompt. The counts are those of the requests, which are ahead of
        the deltas that wait to be added; `running`: the usage must not be, so it is counted here.
        """
        self._n = n
        self._running = running
        self._choices = [
            UsageCounter(len(each.prompt_token_ids or ())) if running else each.usage
            for each in requests
        ]
        self._reasoning_tokens = 0
        self._metrics: dict[int, Mapping[str, int | float]] = {}  # by choice, if requested

    @property
    def finished(self) -> bool:
        """True once every choice has its finish reason."""
        for choice in self._choices:  # noqa: SIM110  `all` takes a call for each
            if not choice.finished:
                return False
        return True

    def add(self, choice: int, delta: CompletionDelta) -> OutputEnd | None:
        """Count a delta. Returns why the output ended with the last delta of a choice."""
        if self._running:
            self._choices[choice].add((delta,))
        counts = delta.counts
        if counts is not None and counts.metrics:
            self._metrics[choice] = counts.metrics
        called = False
        if type(delta) is ParsedDelta:
            self._reasoning_tokens += delta.reasoning_tokens
            called = delta.called
        if delta.finish_reason is None:
            return None
        end = _ENDS.get(delta.finish_reason)
        if end is None:
            raise InferenceFailed(f"unknown finish reason {delta.finish_reason!r} from the engine")
        return OutputEnd("calls" if called else end, delta.stop_reason)

    def check_finished(self) -> None:
        """Raise InferenceFailed if a stream ended without a finish reason."""
        if not self.finished:
            raise InferenceFailed("the model's output ended without a finish reason")

    def usage(self) -> Usage:
        """The counts so far."""
        usage = Usage(reasoning_tokens=self._reasoning_tokens)
        before: UsageCounter | None = None
        for at, choice in enumerate(self._choices):
            if choice is not before:  # the sequences of a beam search are one request
                usage.completion_tokens += choice.completion_tokens
            before = choice
            if at % self._n == 0:
                usage.prompt_tokens += choice.prompt_tokens
                usage.cached_tokens += choice.cached_tokens
                usage.image_tokens += choice.image_tokens
                usage.audio_tokens += choice.audio_tokens
        if self._metrics:
            usage.performance_metrics = [self._metrics[each] for each in sorted(self._metrics)]
        return usage


class OutputGuard(Protocol):
    """Sees the prompt and the output of a job, and may block them: see `serving.guard`."""

    blocks_prompt: bool  # then nothing runs

    def read(self, deltas: Deltas, request: GenerationRequest) -> Deltas: ...
    def blocked(self, request: GenerationRequest) -> CompletionDelta: ...
    def fields(self) -> dict[str, Any]: ...


@dataclass(slots=True, kw_only=True)
class CompletionJob:
    """The choices of one request by prompt: `n` of the first, then `n` of the next, ..."""

    id: str
    model: ServingModel
    context: RequestContext
    admission: Admission
    requests: Sequence[GenerationRequest]
    n: int = 1
    kept: int | None = None  # of the `n`, return the likeliest (`best_of`); None: all
    options: ResponseOptions = field(default_factory=ResponseOptions)
    echo: Sequence[str] = ()  # text before the choices of each prompt; empty: none
    parser: ParserConfig | None = None  # None: the model's text is the content
    tools: Tools = NO_TOOLS  # as the request offers them, for those who write the response
    adjusted: Mapping[str, str] = field(
        default_factory=dict
    )  # request field -> the value used instead
    repeats_output: bool = False  # the end of a stream has all of it again
    guard: OutputGuard | None = None  # None: nothing is moderated
    created: int = field(default_factory=lambda: int(time.time()))

    def bursts(self) -> Bursts:
        """The deltas of every choice as they arrive: `ParsedDelta`s if the job has a parser.

        Closing the generator cancels the generation.
        """
        read: ReadDeltas | None = None if self.parser is None else self.parser.parse
        if self.guard is not None:
            if self.guard.blocks_prompt:
                return _blocked(self.requests, self.guard)
            read = _guarded(self.guard, read)
        several = self.requests[0].sequences > 1
        requests = self.requests[:: self.n] if several else self.requests
        bursts = self.admission.bursts(self.context, self.model, requests, read)
        return _split_sequences(bursts, self.n) if several else bursts

    def progress(self) -> CompletionProgress:
        """New counts, before the first token."""
        running = self.options.continuous_usage
        return CompletionProgress(self.requests, n=self.n, running=running)

    def prompt_token_ids(self, choice: int) -> list[int]:
        """The prompt of a choice; empty if the model takes only text."""
        return list(self.requests[choice].prompt_token_ids or ())

    def echo_text(self, choice: int) -> str:
        """The text before a choice's own, if the request asks for it."""
        return self.echo[choice // self.n] if self.echo else ""


async def _blocked(requests: Sequence[GenerationRequest], guard: OutputGuard) -> Bursts:
    """The ends of choices that do not run."""
    yield [(at, [guard.blocked(each)]) for at, each in enumerate(requests)]


def _guarded(guard: OutputGuard, parse: ReadDeltas | None) -> ReadDeltas:
    """The guard reads what a parser has read."""
    if parse is None:
        return guard.read
    return lambda deltas, request: guard.read(parse(deltas, request), request)


async def _split_sequences(bursts: Bursts, n: int) -> Bursts:
    """The deltas under the index of their choice, where one request generates `n` sequences."""
    async with aclosing(bursts):
        async for burst in bursts:
            yield [
                (at * n + (delta.sequence if isinstance(delta, SequenceDelta) else 0), [delta])
                for at, deltas in burst
                for delta in deltas
            ]


def new_id(prefix: str, separator: str = "-") -> str:
    """A unique id, as engines need it. The client's request id may repeat."""
    return f"{prefix}{separator}{random.getrandbits(128):032x}"


def request_id(id: str, at: int, *, prompts: int) -> str:
    """The id of a prompt's request: the job's own, numbered if there are several prompts."""
    return id if prompts == 1 else f"{id}-{at}"


def first_request(
    id: str,
    prompt: Prompt,
    params: SamplingParams,
    request: SamplingFields,
    options: ResponseOptions,
    constraint: Constraint,
) -> GenerationRequest:
    """The request for a prompt's first choice. The others differ only in id and seed."""
    return GenerationRequest(
        request_id=id,
        prompt=prompt.text,
        prompt_token_ids=prompt.token_ids or None,
        images=prompt.images,
        audio_files=prompt.audio_files,
        sampling_params=params,
        stream=bool(request.stream),
        return_token_ids=options.needs_token_ids,
        priority=request.priority or 0,
        cache_salt=request.cache_salt,
        stream_interval=options.interval if options.coalesced_by_engine else 1,
        field_names=REQUEST_NAMES if constraint is NO_CONSTRAINT else _field_names(constraint),
        fallback=constraint.fallback,
        relay=TextRelay() if request.stream else None,
        usage=UsageCounter(len(prompt.token_ids)),
    )


def _field_names(constraint: Constraint) -> Mapping[str, str]:
    """The engine's field names -> the names in this request."""
    return {**REQUEST_NAMES, "structured_outputs": constraint.param, **constraint.field_names}


def choice_requests(first: GenerationRequest, n: int) -> list[GenerationRequest]:
    """`n` requests for one prompt, with seeds seed, seed + 1, ... A beam search is one request;
    each choice reads its own sequence of it.
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


def require_generation(model: Describes) -> None:
    """Raise InvalidRequest for a model that generates no text from prompts, such as an embedding
    model.
    """
    if "generate" not in (tasks := model.tasks):
        routes = ["/v1/audio/transcriptions"] if "transcribe" in tasks else []
        routes += ["/v1/audio/speech"] if "speak" in tasks else []
        hint = f" Use {routes[0]}." if routes else ""
        message = f"The model '{model.name}' does not generate text from prompts.{hint}"
        raise InvalidRequest(message, param="model", code="unsupported_model")


_NOT_SAMPLING = {
    "add_special_tokens",
    "priority",
    "cache_salt",
    "return_token_ids",
    "prompt_logprobs",
    "stream_options",
}


def check_request_fields(
    request: SamplingFields, model: Describes, *, special_tokens: bool
) -> None:
    """Raise for fields, other than those for sampling, that the model does not support.

    `special_tokens`: whether tokenizers add special tokens to this kind of prompt by default.
    """
    if not request.model_fields_set & _NOT_SAMPLING:
        return
    reads_ids = model.supports(
        "prompt_token_ids"
    )  # else the backend tokenizes, by its own defaults
    if request.add_special_tokens not in (None, special_tokens) and not reads_ids:
        raise unsupported("add_special_tokens")
    if reports_continuous_usage(request.stream_options) and not any(
        map(model.supports, ("return_token_ids", "running_counts"))
    ):
        raise unsupported("stream_options.continuous_usage_stats")
    requested = {
        "priority": request.priority,
        "cache_salt": request.cache_salt,
        "return_token_ids": request.return_token_ids,
        "prompt_logprobs": request.prompt_logprobs is not None,
    }
    check_supported([name for name, value in requested.items() if value], model)


def count_prompt_logprobs(params: SamplingParams, prompt_tokens: int, model: Describes) -> int:
    """Log probabilities of a prompt: each token's own and its alternatives'."""
    alternatives = params.prompt_logprobs
    if alternatives is None:
        return 0
    if alternatives < 0:  # all of the vocabulary
        alternatives = model.facts.vocab_size or 1
    return prompt_tokens * (1 + alternatives)
