"""An engine without a model: tokens at a set rate, size, delay and failure point, for tests and
benchmarks.

Its tokens are set, so what chooses tokens (temperature, penalties, logit_bias, stop, grammars, ...)
has nothing to work on here: it is accepted and changes nothing.
"""

import asyncio
import dataclasses
import itertools
import math
import random
import struct
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from openai_frontend.engines.engine import (
    DeltaSink,
    Engine,
    EngineError,
    EngineStats,
    ModelFacts,
    ModelSpec,
)
from openai_frontend.generation import (
    CompletionDelta,
    EmbeddingResult,
    EmbedRequest,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    ScorePairRequest,
    ScoreResult,
    TokenCounts,
    TokenLogprobs,
)
from openai_frontend.triton import error_codes


@dataclass(frozen=True, slots=True, kw_only=True)
class MockSettings:
    """`model.json` of a mock model; each field has a default, so that the file may be absent."""

    tokens: tuple[str, ...] = (" token",)  # the answer's tokens, in a circle
    answer_tokens: int | None = None  # the answer stops by itself here; None: only at max_tokens
    tokens_per_second: float = 0.0  # for each stream; 0: as fast as the loop goes
    first_token_delay_s: float = 0.0
    fail_after_tokens: int | None = None  # the request fails here
    die_after_tokens: int | None = None  # the whole engine fails here, and stays dead
    hang_after_tokens: int | None = None  # the whole engine stops here, once, for `hang_s`
    hang_s: float = 3600.0
    never_ends: bool = False  # an answer's last token comes, and nothing says that it is the last
    ignores_cancel: bool = False  # it goes on for callers that have gone
    fail_at_load: str | None = None  # the reason that the load fails with
    load_s: float = 0.0
    max_model_len: int = 4096
    max_running: int = 1024  # streams at once; more wait
    tokenizer: str | None = None  # a folder; one that starts with "./" lies in the version's folder
    tasks: tuple[str, ...] = ("generate", "embed", "score")
    dimensions: int = 8  # of an embedding
    max_lora_rank: int | None = None  # with an adapter it says the adapter's name; None: takes none


class _Answer:
    """One running request."""

    __slots__ = (
        "adapter",
        "length",
        "params",
        "prompt_ids",
        "prompt_tokens",
        "request_id",
        "sent",
        "sink",
        "stops",
    )

    def __init__(self, request: GenerationRequest, sink: DeltaSink, settings: MockSettings) -> None:
        self.request_id = request.request_id
        self.adapter = request.adapter
        self.sink = sink
        self.sent = 0
        self.params = request.sampling_params
        self.prompt_ids = _prompt_ids(request.prompt, request.prompt_token_ids)
        self.prompt_tokens = len(self.prompt_ids)
        room = settings.max_model_len - self.prompt_tokens
        if room <= 0:
            raise EngineError(
                f"the prompt has {self.prompt_tokens} tokens, the context {settings.max_model_len}",
                error_codes.INVALID_ARG,
            )
        asked = request.sampling_params.max_tokens
        limit = room if asked is None else min(asked, room)
        own = settings.answer_tokens
        self.stops = own is not None and own <= limit and not request.sampling_params.ignore_eos
        self.length = own if self.stops and own is not None else limit

    @property
    def wants_logprobs(self) -> bool:
        """Whether there is more to tell of a token than its text and id."""
        params = self.params
        return bool(
            params.logprobs is not None
            or params.prompt_logprobs is not None
            or params.logprob_token_ids
        )


class MockEngine(Engine):
    """Steps all running answers together, as a batching engine does."""

    def load(self, model: ModelSpec) -> ModelFacts:
        """Read the settings; fail where they say so."""
        self._settings = settings = _settings(model)
        if settings.load_s:
            time.sleep(settings.load_s)
        if settings.fail_at_load is not None:
            raise ValueError(settings.fail_at_load)
        self._deltas = [
            CompletionDelta(text=text, token_ids=(number,))
            for number, text in enumerate(settings.tokens)
        ]
        self._running: dict[str, _Answer] = {}
        self._waiting: dict[str, _Answer] = {}
        self._endless: dict[str, _Answer] = {}
        self._failure: str | None = None
        self._scheduled = False
        self._awake: asyncio.Event | None = None  # None, or set: it does not hang
        tokenizer = settings.tokenizer
        if tokenizer is not None and tokenizer.startswith("./"):
            tokenizer = str(model.version_folder / tokenizer)
        return ModelFacts(
            max_model_len=settings.max_model_len,
            tokenizer=tokenizer,
            tasks=settings.tasks,
            dimensions=settings.dimensions,
            matryoshka=True,
            description="a mock: it answers with set tokens",
            max_lora_rank=settings.max_lora_rank,
        )

    async def warm_up(self) -> None:
        """An engine that hangs warms up once it hangs no more."""
        if self._awake is not None:
            await self._awake.wait()

    def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        """Queue the answer; the step loop sends its tokens."""
        if self._failure is not None:
            raise EngineError(self._failure, error_codes.UNAVAILABLE)
        answer = _Answer(request, sink, self._settings)
        self._waiting[request.request_id] = answer
        loop = asyncio.get_running_loop()
        loop.call_later(self._settings.first_token_delay_s, self._admit, request.request_id, loop)

    async def embed(self, request: EmbedRequest) -> EmbeddingResult:
        """Return a vector that depends on the input alone."""
        size = request.dimensions or self._settings.dimensions
        ids = request.prompt_token_ids
        source = array("i", ids).tobytes() if ids is not None else request.prompt
        numbers = random.Random(source)  # noqa: S311 - a test vector, not a secret
        vector = struct.pack(f"<{size}f", *(numbers.uniform(-1, 1) for _ in range(size)))
        tokens = len(_prompt_ids(request.prompt, request.prompt_token_ids))
        return EmbeddingResult(memoryview(vector), tokens)

    async def score(self, request: ScorePairRequest) -> ScoreResult:
        """Return a score between 0 and 1 that depends on the input alone."""
        source = array("i", [*request.prompt_token_ids, *(request.token_type_ids or ())]).tobytes()
        numbers = random.Random(source)  # noqa: S311 - a test's score, not a secret
        return ScoreResult(numbers.random(), len(request.prompt_token_ids))

    def cancel(self, request_id: str) -> None:
        """Forget the request; the next step is without it."""
        self._endless.pop(request_id, None)
        if self._settings.ignores_cancel:
            return
        self._waiting.pop(request_id, None)
        if self._running.pop(request_id, None) is not None:
            self._fill()

    def stats(self) -> EngineStats:
        """Count the running and the waiting."""
        return EngineStats(
            running=len(self._running), waiting=len(self._waiting), failure=self._failure
        )

    def _admit(self, request_id: str, loop: asyncio.AbstractEventLoop) -> None:
        room = len(self._running) < self._settings.max_running
        if room and (answer := self._waiting.pop(request_id, None)) is not None:
            self._running[request_id] = answer
        self._schedule(loop)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._running and not self._scheduled:
            self._scheduled = True
            rate = self._settings.tokens_per_second
            loop.call_later(1 / rate if rate else 0, self._step, loop)

    def _hangs(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the engine begins to hang in this step, or hangs already."""
        if self._awake is not None:
            return not self._awake.is_set()
        at = self._settings.hang_after_tokens
        if not any(answer.sent == at for answer in self._running.values()):
            return False
        self._awake = asyncio.Event()
        loop.call_later(self._settings.hang_s, self._wake, loop, self._awake)
        return True

    def _wake(self, loop: asyncio.AbstractEventLoop, awake: asyncio.Event) -> None:
        awake.set()
        self._schedule(loop)

    def _step(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled = False
        if self._hangs(loop):
            return
        ended = [answer for answer in list(self._running.values()) if self._advance(answer)]
        for answer in ended:
            self._running.pop(answer.request_id, None)
        if ended:
            self._fill()
        self._schedule(loop)

    def _fill(self) -> None:
        """Those that wait take the places that are free now; the next step is with them."""
        room = self._settings.max_running - len(self._running)
        for request_id in list(itertools.islice(self._waiting, room)):
            self._running[request_id] = self._waiting.pop(request_id)

    def _advance(self, answer: _Answer) -> bool:
        """Send the next token; say whether it was the last."""
        settings = self._settings
        if answer.sent == settings.fail_after_tokens:
            answer.sink.fail(EngineError("the mock fails here, as it was told to"))
            return True
        if answer.sent == settings.die_after_tokens:
            self._die("the mock engine died, as it was told to")
            return True
        delta = self._deltas[answer.sent % len(self._deltas)]
        if answer.adapter is not None:
            delta = CompletionDelta(f" {answer.adapter.name}", delta.token_ids)
        if answer.length == 0:
            delta = CompletionDelta()
        if answer.wants_logprobs:
            delta = self._with_logprobs(answer, delta)
        answer.sent += 1
        if answer.sent < answer.length:
            answer.sink.send(delta)
            return False
        if settings.never_ends:
            answer.sink.send(delta)
            self._endless[answer.request_id] = answer
        else:
            answer.sink.send(_last(answer, delta))
        return True

    def _with_logprobs(self, answer: _Answer, delta: CompletionDelta) -> CompletionDelta:
        """The token's own, and with the answer's first token those of the prompt."""
        told = CompletionDelta(delta.text, delta.token_ids)
        params = answer.params
        if params.logprobs is not None or params.logprob_token_ids:
            told.logprobs = [self._logprobs(token, params) for token in delta.token_ids]
        if params.prompt_logprobs is not None and answer.sent == 0:
            asked = SamplingParams(logprobs=params.prompt_logprobs)
            told.prompt_logprobs = [
                None if place == 0 else self._logprobs(token, asked)
                for place, token in enumerate(answer.prompt_ids)
            ]
        return told

    def _logprobs(self, token: int, params: SamplingParams) -> TokenLogprobs:
        """Each token is half as likely as the one before it: the answer's own, then those asked
        for by id, or the ids that follow it.
        """
        vocabulary = self._settings.tokens
        count = len(vocabulary) if params.logprobs == -1 else params.logprobs or 1
        ids = dict.fromkeys([token, *(params.logprob_token_ids or range(token, token + count))])
        return {
            id: {
                "logprob": rank * math.log(0.5),
                "rank": rank,
                "decoded_token": vocabulary[id] if id < len(vocabulary) else f"<{id}>",
            }
            for rank, id in enumerate(ids, start=1)
        }

    def _die(self, reason: str) -> None:
        self._failure = reason
        for answer in [*self._running.values(), *self._waiting.values()]:
            answer.sink.fail(EngineError(reason, error_codes.UNAVAILABLE))
        self._running.clear()
        self._waiting.clear()


def _last(answer: _Answer, delta: CompletionDelta) -> CompletionDelta:
    reason: FinishReason = "stop" if answer.stops else "length"
    counts = TokenCounts(prompt_tokens=answer.prompt_tokens, completion_tokens=answer.length)
    return dataclasses.replace(delta, finish_reason=reason, counts=counts)


def _prompt_ids(prompt: str | None, token_ids: Sequence[int] | None) -> Sequence[int]:
    """A word is a token where there is no tokenizer."""
    return token_ids if token_ids is not None else range(len((prompt or "").split()))


def _settings(model: ModelSpec) -> MockSettings:
    arguments = dict(model.arguments)
    for name in ("tokens", "tasks"):
        if name in arguments:
            arguments[name] = tuple(arguments[name])
    try:
        return MockSettings(**arguments)
    except TypeError as error:
        raise ValueError(f"{model.version_folder / 'model.json'}: {error}") from error
