"""The interface of an in-process model. To serve a Python model of your own, write one `Engine`.

A model's `config.pbtxt` names the class:

    backend: "inprocess"
    parameters { key: "engine" value: { string_value: "my_package.my_module:MyEngine" } }
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from openai_frontend.generation import (
    Adapter,
    CompletionDelta,
    EmbeddingResult,
    EmbedRequest,
    GenerationRequest,
    ScorePairRequest,
    ScoreResult,
)
from openai_frontend.triton import error_codes


class EngineError(Exception):
    """A failure whose message the client may see; `code` is of `triton/error_codes.py`."""

    def __init__(self, message: str, code: int = error_codes.INTERNAL) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What an engine is made from."""

    name: str
    version: int
    folder: Path  # the model's folder in the repository, or Triton's copy of it
    parameters: Mapping[str, str]  # `parameters` of config.pbtxt
    arguments: Mapping[str, Any]  # `<version>/model.json`; empty where there is no such file

    @property
    def version_folder(self) -> Path:
        """The folder of this version."""
        return self.folder / str(self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What the gateway must know of a model."""

    max_model_len: int  # tokens of prompt and answer together
    tokenizer: str | None = None  # a folder with tokenizer and chat template; None: no chat
    tasks: tuple[str, ...] = ("generate",)  # "generate", "embed", "score"
    owned_by: str = "openai-frontend"
    vocab_size: int | None = None
    dimensions: int | None = None  # the length of a vector; None where it makes none
    matryoshka: bool | None = None  # whether shorter vectors may be asked for
    description: str | None = None
    max_lora_rank: int | None = None  # of the adapters that it takes; None: it takes none


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """How the engine is doing. `failure` says why it can serve no more; None while it can."""

    running: int = 0
    waiting: int = 0
    failure: str | None = None
    gauges: Mapping[str, float] = field(default_factory=dict)


# As Prometheus has them: name, labels beside those of the model, value
Sample = tuple[str, Mapping[str, str], float]


class DeltaSink(Protocol):
    """Where the answer to one request goes, on the event loop's thread. It ends once: by a delta
    with a `finish_reason`, or by `fail`; what comes after that is dropped, for the caller may be
    gone.
    """

    def send(self, delta: CompletionDelta) -> None:
        """Add to the answer. Set `prompt_tokens` and `cached_tokens` in the last delta's counts;
        the answer's own tokens are counted from each delta's `token_ids`.
        """

    def send_text(self, text: str, token_ids: Sequence[int]) -> None:
        """Add plain text: `send(CompletionDelta(text, token_ids))` for less. Not for the last."""

    def text_stream(self, step: Callable[[Any, int], str | None], tokenizer: Any) -> Any:
        """The way of plain text without Python, for `triton._core.advance_all`: `step(tokenizer,
        token id)` gives the text that a token completes. None where more than text is wanted.
        """

    def fail(self, error: Exception) -> None:
        """End the answer with an error."""

    @property
    def cancelled(self) -> bool:
        """Whether the caller has gone."""


class Engine(ABC):
    """One loaded model.

    `load` and `unload` run on threads of Triton's and may block. Everything else runs on the
    gateway's event loop and must not. An exception from `load` fails the model alone; one from
    `generate`, `embed` or `score` fails the request.
    """

    @abstractmethod
    def load(self, model: ModelSpec) -> ModelFacts:
        """Load the model; raise, with a message that names file and cause, where it cannot be."""

    async def warm_up(self) -> None:  # noqa: B027  most engines need none
        """Do what needs the event loop before the model is ready. Called once, after `load`."""

    @abstractmethod
    def generate(
        self, request: GenerationRequest, sink: DeltaSink
    ) -> Coroutine[Any, Any, None] | None:
        """Answer a prompt through `sink`.

        Either return None and go on to use the sink from callbacks of your own (no task per
        request), or return a coroutine, which runs as a task that is cancelled when the caller
        goes. `request.request_id` is unique.
        """

    async def embed(self, request: EmbedRequest) -> EmbeddingResult:
        """Return the input's vector."""
        raise EngineError("the model makes no embeddings", error_codes.UNSUPPORTED)

    async def score(self, request: ScorePairRequest) -> ScoreResult:
        """Return how relevant the sequence's document is to its query."""
        raise EngineError("the model is no cross-encoder", error_codes.UNSUPPORTED)

    def set_adapters(self, adapters: Mapping[str, Adapter]) -> None:  # noqa: B027  few take any
        """Know the adapters that requests may name from now on, by name. One that is not among
        them any more may still be in use. Called before the model is ready, and then on the loop.
        """

    def cancel(self, request_id: str) -> None:  # noqa: B027  a coroutine is cancelled anyway
        """Stop work on a request whose caller has gone. Called once, after `generate` for it."""

    def unload(self) -> None:  # noqa: B027  many have nothing to release
        """Release everything. No request is in flight."""

    def stats(self) -> EngineStats:
        """Say how the engine is doing. Called often: it must be cheap."""
        return EngineStats()

    def samples(self) -> Iterable[Sample]:
        """Tell what `/metrics` shows of vLLM's engines beside `stats`; asked at each scrape."""
        return ()
