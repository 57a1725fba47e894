"""Facts of one request for the access log and its span. Contains no prompt and no output text.

Middleware creates it, the served model adds generations.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic_ns, time_ns
from typing import Any, Protocol

from openai_frontend.generation import GenerationRequest, UsageCounter
from openai_frontend.media.stages import Stage

# (trace, parent or 0, model, version, activity, nanoseconds of the monotonic clock)
CoreActivity = tuple[int, int, str, int, int, int]

# (trace, activity, name, datatype, shape, elements); no elements if they are too many
CoreTensor = tuple[int, int, str, str, tuple[int, ...], list[Any]]

MAX_CORE_TRACES = 32  # per request; a batch may have thousands

# Route -> the API of text that it belongs to, by the values of OpenTelemetry's `openai.api.type`
# and one of our own for Anthropic's API. Other routes have none.
APIS: Mapping[str, str] = {
    "/v1/chat/completions": "chat_completions",
    "/v1/chat/completions/render": "chat_completions",
    "/v1/responses": "responses",
    "/v1/responses/input_tokens": "responses",
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "messages",
}


class CoreTrace(Protocol):
    """Triton's trace of one of its requests, filled on its threads."""

    @property
    def ended(self) -> bool:
        """Whether no more activities will come."""

    def activities(self) -> Sequence[CoreActivity]:
        """The activities so far."""

    def tensors(self) -> Sequence[CoreTensor]:
        """The tensors so far, if the trace's level includes them."""

    def request_ids(self) -> Mapping[int, str]:
        """The ids of the requests of its traces that have one."""


class CoreSampler(Protocol):
    """Decides which requests to Triton are traced, if the whole request does not decide it."""

    def sample(
        self, record: "RequestRecord", model: str
    ) -> "tuple[int, Callable[[CoreTrace], None]] | None":
        """Triton's level, and what takes the trace when the request has ended. None: no trace."""


@dataclass(slots=True, eq=False)
class GenerationRecord:
    """One choice of the request."""

    params: Mapping[str, Any]  # as requested, by the names of SamplingParams
    counts_prompt: bool  # False for another choice of the previous prompt
    clock_ns: int  # of the request
    usage: UsageCounter
    request_id: str = ""  # in Triton
    end_ns: int | None = None  # Unix time of the end

    @property
    def first_ns(self) -> int | None:
        """Unix time of the first token."""
        first_ns = self.usage.first_token_ns
        return None if first_ns is None else self.clock_ns + first_ns

    @property
    def prompt_tokens(self) -> int:
        """0 before the model's first response."""
        return self.usage.prompt_tokens if self.usage.received else 0

    def end(self) -> None:
        self.end_ns = self.clock_ns + monotonic_ns()


_PARAMS = (
    "max_tokens", "temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "seed",
)  # fmt: skip


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request, from its headers to the end of its response."""

    request_id: str
    # Unix time minus monotonic time. All times of the request, and Triton's, are monotonic, so
    # that a change of the wall clock does not change a duration.
    clock_ns: int = field(default_factory=lambda: time_ns() - monotonic_ns())
    begun_ns: int = 0  # Unix time
    trace_id: str | None = None  # 32 hexadecimal digits
    span_id: str | None = None  # 16 digits, of the request's own span
    parent_id: str | None = None  # 16 digits, of the caller's span
    trace_state: str = ""  # the caller's `tracestate`
    core_context: str | None = None  # for Triton, as JSON; None if the request is not sampled
    sampler: CoreSampler | None = None  # None: `core_context` decides
    sent_ns: int = 0  # monotonic time of the response's first byte
    response_id: str | None = None  # also the request id in Triton and the engine
    core_model: str | None = None  # the model's name in Triton
    stream: bool = False
    generations: list[GenerationRecord] = field(default_factory=list)
    read_tokens: int = 0  # of prompts without generation, such as embeddings
    error: str | None = None  # the error code, or the exception's name
    core_traces: list[CoreTrace] = field(default_factory=list)
    media_stages: list[Stage] = field(default_factory=list)
    # Set at the end
    end_ns: int = 0
    method: str = ""
    client: str | None = None  # address from the peer or a trusted proxy
    route: str = ""  # path template of the route
    model: str = ""  # the request's name for it; empty if no such model is served
    key: str | None = None  # the key's name
    status: int = 499
    body_bytes: int = 0
    _prompt: object = None  # of the last generation

    def __post_init__(self) -> None:
        self.begun_ns = self.now_ns()

    def now_ns(self) -> int:
        """Unix time by the clock of the request's start."""
        return self.clock_ns + monotonic_ns()

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once."""
        return self.read_tokens + sum(
            each.prompt_tokens for each in self.generations if each.counts_prompt
        )

    @property
    def completion_tokens(self) -> int:
        return sum(usage.completion_tokens for usage in self._usages())

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in the engine's prefix cache."""
        return sum(usage.cached_tokens for usage in self._usages())

    def _usages(self) -> set[UsageCounter]:
        """A retried generation shares its counter with the first attempt."""
        return {each.usage for each in self.generations}

    def generation(self, model: str, request: GenerationRequest) -> GenerationRecord:
        """Add a generation that starts now."""
        if self.response_id is None:
            self.response_id = request.request_id
        self.core_model = model
        self.stream = request.stream
        prompt: object = request.prompt_token_ids or request.prompt
        params = {name: getattr(request.sampling_params, name) for name in _PARAMS}
        record = GenerationRecord(
            params, prompt is not self._prompt, self.clock_ns, request.usage, request.request_id
        )
        self._prompt = prompt
        self.generations.append(record)
        return record

    def read(self, model: str, prompt_tokens: int) -> None:
        """Count a prompt without generation."""
        self.core_model = model
        self.read_tokens += prompt_tokens

    def failed(self, error: BaseException) -> None:
        """Record the error that ends the request, possibly in the middle of the response."""
        self.error = getattr(error, "code", None) or type(error).__name__

    def follows(self, trace: CoreTrace) -> bool:
        """Add a trace, unless the request has too many already; returns whether it was added."""
        if len(self.core_traces) >= MAX_CORE_TRACES:
            return False
        self.core_traces.append(trace)
        return True
