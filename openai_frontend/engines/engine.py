"""The interface of an in-process model. To serve your own Python model, implement one `Engine`.

A model's `config.pbtxt` names the class:

    backend: "inprocess"
    parameters { key: "engine" value: { string_value: "my_package.my_module:MyEngine" } }
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from openai_frontend.generation import Adapter, CompletionDelta, GenerationRequest, TokenCounts
from openai_frontend.model_facts import KVTransferFacts as KVTransferFacts
from openai_frontend.model_facts import ModelFacts as ModelFacts
from openai_frontend.pooling import EmbeddingResult, EmbedRequest, ScorePairRequest, ScoreResult
from openai_frontend.triton import error_codes


class EngineError(Exception):
    """Fails a request with the status of `code` (`triton/error_codes.py`).

    The client gets the message unless the status is 500.
    """

    def __init__(self, message: str, code: int = error_codes.INTERNAL) -> None:
        super().__init__(message)
        self.code = code


class ConstraintError(ValueError):
    """Fails a request because of its `structured_outputs`, which begins the message.

    The gateway then tries a looser constraint, if the request allows that, for later requests too.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The argument of `Engine.load`: the model's location and configuration."""

    name: str
    version: int
    folder: Path  # the model's folder in the repository, or Triton's copy of it
    parameters: Mapping[str, str]  # `parameters` of config.pbtxt
    arguments: Mapping[
        str, Any
    ]  # the content of `<version>/model.json`; empty if there is no such file
    # `report_phase("reading weights")` shows what `load` does at the moment in the log and at start
    report_phase: Callable[[str], None] = field(default=lambda _: None, compare=False)

    @property
    def version_folder(self) -> Path:
        return self.folder / str(self.version)


KV_CACHE_USAGE = "vllm:kv_cache_usage_perc"  # a gauge under vLLM's name; 1 means full


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Load of an engine."""

    running: int = 0
    waiting: int = 0
    gauges: Mapping[str, float] = field(default_factory=dict)


# A Prometheus sample: name, labels in addition to the model's, value
Sample = tuple[str, Mapping[str, str], float]


class DeltaSink(Protocol):
    """Receives the output of one request, on the event loop's thread.

    The output ends once: with a delta that has a `finish_reason`, or with `fail`. Anything after
    that is dropped, because the caller may be gone.
    """

    def send(self, delta: CompletionDelta) -> None:
        """Append to the output. Set `prompt_tokens` and `cached_tokens` in the counts of the last
        delta; output tokens are counted from each delta's `token_ids`.
        """

    def send_text(self, text: str, token_ids: Sequence[int]) -> None:
        """Append plain text: the same as `send(CompletionDelta(text, token_ids))`, but cheaper. Not
        for the last delta.
        """

    def text_stream(
        self, step: Callable[[Any, int], str | None], tokenizer: Any, logprobs: int = 0
    ) -> Any:
        """Return a native fast path for plain text, for `triton._core.advance_all`.

        `step(tokenizer, token_id)` returns the text that a token completes. `logprobs` is the
        number of log probabilities of each token, its own included. None if the request wants more
        than text and these.
        """

    def count_prompt(self, counts: TokenCounts) -> None:
        """Report the prompt's counts with the first delta, which follows."""

    def fail(self, error: Exception) -> None:
        """End the output with an error."""

    @property
    def counts_prompt(self) -> bool:
        """Whether `count_prompt` has an effect: the request asks for it, and no delta was sent."""

    @property
    def logprob_arrays(self) -> bool:
        """Whether deltas may have `logprob_arrays` instead of `logprobs`."""

    @property
    def cancelled(self) -> bool:
        """Whether the caller is gone."""


class Engine(ABC):
    """One loaded model.

    `load` and `unload` run on Triton's threads and may block. Everything else runs on the gateway's
    event loop and must not block. An exception from `load` fails only this model; an exception from
    `generate`, `embed` or `score` fails only the request.
    """

    @classmethod
    def describe(cls, model: ModelSpec) -> ModelFacts | None:
        """The facts that the model's files show, without loading it, for `openai-frontend check`;
        None if only `load` knows them. Raise ValueError for invalid files.
        """
        return None

    @abstractmethod
    def load(self, model: ModelSpec) -> ModelFacts:
        """Load the model. Raise an exception whose message names the file and the cause if that
        fails.
        """

    async def warm_up(self) -> None:  # noqa: B027  most engines need none
        """Do what needs the event loop before the model is ready. Called once, after `load`."""

    @abstractmethod
    def generate(
        self, request: GenerationRequest, sink: DeltaSink
    ) -> Coroutine[Any, Any, None] | None:
        """Generate the output of a prompt into `sink`.

        Either return None and call the sink from callbacks (no task per request), or return a
        coroutine. It runs as a task that is cancelled when the caller disconnects.
        `request.request_id` is unique.
        """

    async def embed(self, request: EmbedRequest) -> EmbeddingResult:
        """Return the input's embedding, or the result of another task of the model."""
        raise EngineError("the model does not support embeddings", error_codes.UNSUPPORTED)

    async def score(self, request: ScorePairRequest) -> ScoreResult:
        """Return the relevance of the document to the query; both are in the one sequence."""
        raise EngineError("the model is not a cross-encoder", error_codes.UNSUPPORTED)

    def set_adapters(self, adapters: Mapping[str, Adapter]) -> None:  # noqa: B027  few take any
        """Set the LoRA adapters that requests may name from now on, by name.

        An adapter that is no longer listed may still be in use. Called before the model is ready,
        and later on the event loop.
        """

    def cancel(self, request_id: str) -> None:  # noqa: B027  a coroutine is cancelled anyway
        """Stop a request whose caller is gone. Called once per request, after `generate`."""

    def unload(self) -> None:  # noqa: B027  many have nothing to release
        """Release everything. No request is in flight."""

    @property
    def is_sleeping(self) -> bool:
        """Whether the engine sleeps, or a wake has not completed."""
        return False

    async def sleep(self, level: int) -> int:
        """Release memory until `wake`, and return the number of bytes, or 0 if it is unknown.
        Called without a request in flight, and only if `ModelFacts.sleep_obstacle` is None.

        `level`: 1 keeps the weights in main memory; 2 drops them, and `wake` reads them again.
        """
        raise EngineError("the engine cannot sleep", error_codes.UNSUPPORTED)

    async def wake(self) -> None:
        """Take the memory again. After an exception, the engine is loaded again."""
        raise EngineError("the engine cannot sleep", error_codes.UNSUPPORTED)

    def failure(self) -> str | None:
        """Return why the engine can no longer serve, or None. Called for each request, on any
        thread.
        """
        return None

    def stats(self) -> EngineStats:
        """Return the current load. Called often, so it must be cheap."""
        return EngineStats()

    def samples(self) -> Iterable[Sample]:
        """Return additional samples for `/metrics`. Called at each scrape."""
        return ()
