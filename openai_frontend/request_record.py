"""What is told of one request once it is over: in the access log, in its span. No text of either
side.

Filled by those who know: the middleware begins it, the served model counts. There is one where
somebody wants it; else `current` is None, and nothing is noted.
"""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import monotonic_ns, time_ns
from typing import Any, Protocol

from openai_frontend.generation import GenerationRequest, UsageCounter

# (trace, parent or 0, model, version, activity, nanoseconds of the monotonic clock)
CoreActivity = tuple[int, int, str, int, int, int]

MAX_CORE_TRACES = 32  # of one request; a batch may hold thousands


class CoreTrace(Protocol):
    """What Triton tells of its part, filled on its threads."""

    @property
    def ended(self) -> bool:
        """Whether it tells nothing more."""

    def activities(self) -> Sequence[CoreActivity]:
        """All that it has told so far."""


@dataclass(slots=True, eq=False)
class GenerationRecord:
    """One answer of the request."""

    params: Mapping[str, Any]  # what was asked for, by the names of SamplingParams
    counts_prompt: bool  # False for one more answer to the prompt before
    clock_ns: int  # its request's
    usage: UsageCounter
    end_ns: int | None = None  # Unix time of the end

    @property
    def first_ns(self) -> int | None:
        """Unix time of the first token."""
        first_ns = self.usage.first_token_ns
        return None if first_ns is None else self.clock_ns + first_ns

    @property
    def prompt_tokens(self) -> int:
        """Of the prompt; none before the model has begun to answer."""
        return self.usage.prompt_tokens if self.usage.received else 0

    def end(self) -> None:
        """It is over, whatever ended it."""
        self.end_ns = self.clock_ns + monotonic_ns()


_PARAMS = (
    "max_tokens", "temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "seed",
)  # fmt: skip


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request, from its head to the end of its answer."""

    request_id: str
    # What Unix time is ahead of the monotonic clock, by which all of the request's times go, as
    # Triton's do: a jump of the wall clock is no duration
    clock_ns: int = field(default_factory=lambda: time_ns() - monotonic_ns())
    begun_ns: int = 0  # Unix time
    trace_id: str | None = None  # 32 hexadecimal digits
    span_id: str | None = None  # 16: of the request's own span
    parent_id: str | None = None  # 16: of the span that the caller named
    trace_state: str = ""  # other vendors' own, from the caller
    core_context: str | None = None  # for Triton, JSON; None where the request is not sampled
    response_id: str | None = None  # the answer's, in Triton and the engine too
    core_model: str | None = None  # as Triton names the model
    stream: bool = False
    generations: list[GenerationRecord] = field(default_factory=list)
    read_tokens: int = 0  # of prompts that were read, and no more
    error: str | None = None  # the code of what failed, or its exception's name
    core_traces: list[CoreTrace] = field(default_factory=list)
    # Set at the end
    end_ns: int = 0
    method: str = ""
    client: str | None = None  # its address, as its peer or a trusted proxy says
    route: str = ""  # as the route spells it
    model: str = ""  # as the request names it; empty where it names none that is served
    key: str | None = None  # the key's name
    status: int = 499
    body_bytes: int = 0
    _prompt: object = None  # of the generation that began last

    def __post_init__(self) -> None:
        self.begun_ns = self.now_ns()

    def now_ns(self) -> int:
        """Unix time, as the request began with it."""
        return self.clock_ns + monotonic_ns()

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts, each once."""
        return self.read_tokens + sum(
            each.prompt_tokens for each in self.generations if each.counts_prompt
        )

    @property
    def completion_tokens(self) -> int:
        """Of all answers."""
        return sum(usage.completion_tokens for usage in self._usages())

    @property
    def cached_tokens(self) -> int:
        """Of the prompts: what the engine's prefix cache held."""
        return sum(usage.cached_tokens for usage in self._usages())

    def _usages(self) -> set[UsageCounter]:
        """A generation that was sent to the model a second time has the same counter."""
        return {each.usage for each in self.generations}

    def generation(self, model: str, request: GenerationRequest) -> GenerationRecord:
        """One more answer is being made."""
        if self.response_id is None:
            self.response_id = request.request_id
        self.core_model = model
        self.stream = request.stream
        prompt: object = request.prompt_token_ids or request.prompt
        params = {name: getattr(request.sampling_params, name) for name in _PARAMS}
        record = GenerationRecord(params, prompt is not self._prompt, self.clock_ns, request.usage)
        self._prompt = prompt
        self.generations.append(record)
        return record

    def read(self, model: str, prompt_tokens: int) -> None:
        """The model has read a prompt of so many tokens, and that was all."""
        self.core_model = model
        self.read_tokens += prompt_tokens

    def failed(self, error: BaseException) -> None:
        """The request, or its answer in the middle, ends with this."""
        self.error = getattr(error, "code", None) or type(error).__name__

    def follows(self, trace: CoreTrace) -> bool:
        """Whether Triton is to tell of one more of its requests."""
        if len(self.core_traces) >= MAX_CORE_TRACES:
            return False
        self.core_traces.append(trace)
        return True


current: ContextVar[RequestRecord | None] = ContextVar("request_record", default=None)
