"""Steps all running requests together: tokens at a configured rate, size, delay and point of
failure, with a simulated prefix cache.
"""

import asyncio
import itertools
import math
import random
import struct
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

from openai_frontend.engines.engine import (
    KV_CACHE_USAGE,
    DeltaSink,
    Engine,
    EngineError,
    EngineStats,
    ModelFacts,
    ModelSpec,
)
from openai_frontend.engines.kv_events import KVEventPublisher
from openai_frontend.engines.mock.facts import mock_facts
from openai_frontend.engines.mock.script import Script
from openai_frontend.engines.mock.settings import MockSettings, read_settings
from openai_frontend.generation import (
    CompletionDelta,
    FinishReason,
    GenerationRequest,
    LogprobArrays,
    SamplingParams,
    TokenCounts,
    TokenLogprobs,
)
from openai_frontend.media.modalities import AudioFile, AudioInput, ImageInput
from openai_frontend.pooling import (
    TOKEN_TASKS,
    EmbeddingResult,
    EmbedRequest,
    ScorePairRequest,
    ScoreResult,
)
from openai_frontend.prefix_cache.blocks import PrefixCache
from openai_frontend.triton import _core, error_codes

_HALF = math.log(0.5)


class _MockRequest:
    """One running request."""

    __slots__ = (
        "adapter",
        "audio_tokens",
        "cached_tokens",
        "deltas",
        "image_tokens",
        "length",
        "params",
        "prompt_ids",
        "prompt_tokens",
        "request_id",
        "send",
        "sent",
        "sink",
        "stops",
        "transfer",
        "wants_logprobs",
    )

    def __init__(
        self,
        request: GenerationRequest,
        sink: DeltaSink,
        settings: MockSettings,
        script: Script | None,
    ) -> None:
        self.request_id = request.request_id
        self.adapter = request.adapter
        self.sink = sink
        self.send = self._send_first if sink.counts_prompt else sink.send
        self.sent = 0
        self.cached_tokens = 0
        self.params = request.sampling_params
        self.transfer = request.kv_transfer
        self.prompt_ids = _prompt_ids(request.prompt, request.prompt_token_ids)
        self.deltas: list[CompletionDelta] | None = None
        self.image_tokens = self.audio_tokens = 0
        self.prompt_tokens = len(self.prompt_ids)
        if request.images or request.audio_files or request.audio is not None:
            self._read_media(request, settings)
        if script is not None:
            self.deltas = script.output(request.prompt, request.prompt_token_ids)
        room = settings.max_model_len - self.prompt_tokens
        if room <= 0:
            raise EngineError(
                f"the prompt has {self.prompt_tokens} tokens, the context {settings.max_model_len}",
                error_codes.INVALID_ARG,
            )
        asked = request.sampling_params.max_tokens
        limit = room if asked is None else min(asked, room)
        own = settings.answer_tokens if self.deltas is None else len(self.deltas)
        self.stops = own is not None and own <= limit and not request.sampling_params.ignore_eos
        self.length = own if self.stops and own is not None else limit
        params = self.params
        self.wants_logprobs = bool(
            params.logprobs is not None
            or params.prompt_logprobs is not None
            or params.logprob_token_ids
        )

    def _read_media(self, request: GenerationRequest, settings: MockSettings) -> None:
        images = _check_images(request.images, settings)
        files = _check_audio_files(request.audio_files, settings)
        self.deltas = _media_deltas(request, images, files, settings)
        self.image_tokens = len(images) * settings.tokens_per_image
        self.audio_tokens = len(files) * settings.tokens_per_audio
        placeholders = len(images) + len(files)  # which are tokens of the prompt
        self.prompt_tokens += self.image_tokens + self.audio_tokens - placeholders

    def _send_first(self, delta: CompletionDelta) -> None:
        self.send = self.sink.send
        self.sink.count_prompt(self.prompt_counts())
        self.send(delta)

    def prompt_counts(self) -> TokenCounts:
        """The tokens of the prompt, and those found in the cache."""
        return TokenCounts(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            image_tokens=self.image_tokens,
            audio_tokens=self.audio_tokens,
        )


class MockEngine(Engine):
    """Steps all running requests together, as a batching engine does."""

    @classmethod
    def describe(cls, model: ModelSpec) -> ModelFacts:
        """All facts come from model.json."""
        return mock_facts(read_settings(model), model)

    def load(self, model: ModelSpec) -> ModelFacts:
        """Read the settings; fail if they say so."""
        self._settings = settings = read_settings(model)
        if settings.load_s:
            time.sleep(settings.load_s)
        if settings.fail_at_load is not None:
            raise ValueError(settings.fail_at_load)
        self._deltas = [
            CompletionDelta(text=text, token_ids=(number,))
            for number, text in enumerate(settings.tokens)
        ]
        folder = settings.tokenizer_folder(model)
        self._script = (
            Script.load(settings.turns, settings.markers, Path(folder))
            if settings.turns and folder is not None
            else None
        )
        self._running: dict[str, _MockRequest] = {}
        self._prefilling: dict[str, _MockRequest] = {}  # in the delay before their first token
        self._waiting: dict[str, _MockRequest] = {}  # for a slot
        self._endless: dict[str, _MockRequest] = {}
        self._prefix_cache = self._empty_prefix_cache()
        self._kv_events = KVEventPublisher.of(
            settings.kv_events_config,
            has_blocks=settings.tokenizer is not None and settings.prefix_cache_blocks > 0,
        )
        self._prefilled_s = 0.0  # loop time at which the prompts of all requests are computed
        self._failure: str | None = None
        self._sleeping, self._wakes = False, 0
        self._scheduled = False
        self._awake: asyncio.Event | None = None  # None or set: not hanging
        return mock_facts(settings, model)

    def _empty_prefix_cache(self) -> PrefixCache:
        settings = self._settings
        return PrefixCache(blocks=settings.prefix_cache_blocks, block_size=settings.block_size)

    async def warm_up(self) -> None:
        """Waits until the engine no longer hangs."""
        if self._awake is not None:
            await self._awake.wait()

    def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        """Queue the request; the step loop sends its tokens."""
        if self._failure is not None:
            raise EngineError(self._failure, error_codes.UNAVAILABLE)
        if self._sleeping:
            raise EngineError("a request was sent to a sleeping engine")
        if request.kv_transfer is not None and request.kv_transfer.rejected:
            sink.send(CompletionDelta(finish_reason="abort", counts=TokenCounts()))
            return
        answer = _MockRequest(request, sink, self._settings, self._script)
        self._prefilling[request.request_id] = answer
        loop = asyncio.get_running_loop()
        delay_s = self._settings.first_token_delay_s + self._prefill_s(request, answer, loop.time())
        loop.call_later(delay_s, self._admit, request.request_id, loop)

    async def embed(self, request: EmbedRequest) -> EmbeddingResult:
        """Return a vector, or scores, that depend only on the input; or such a vector for each
        token, with the weight of the token as its only number if it is not embedded.
        """
        if request.task in TOKEN_TASKS:
            return self._token_vectors(request)
        size = request.dimensions or self._settings.dimensions
        if request.task == "classify":
            size = len(self._settings.labels)
        images = _check_images(request.images, self._settings)
        ids = request.prompt_token_ids
        source = array("i", ids).tobytes() if ids is not None else request.prompt
        if images:
            source = repr((source, [each.digest for each in request.images]))
        numbers = random.Random(source)  # noqa: S311 - a test vector, not a secret
        vector = struct.pack(f"<{size}f", *(numbers.uniform(-1, 1) for _ in range(size)))
        tokens = len(_prompt_ids(request.prompt, request.prompt_token_ids))
        tokens += len(images) * (self._settings.tokens_per_image - 1)
        return EmbeddingResult(memoryview(vector), tokens)

    def _token_vectors(self, request: EmbedRequest) -> EmbeddingResult:
        size = self._settings.dimensions if request.task == "token_embed" else 1
        ids = _prompt_ids(request.prompt, request.prompt_token_ids)
        rows = {}
        for token_id in {*ids}:
            numbers = random.Random(token_id)  # noqa: S311 - a test vector, not a secret
            rows[token_id] = struct.pack(
                f"<{size}f", *(numbers.uniform(-1, 1) for _ in range(size))
            )
        vectors = b"".join([rows[token_id] for token_id in ids])
        return EmbeddingResult(memoryview(vectors), len(ids), size)

    async def score(self, request: ScorePairRequest) -> ScoreResult:
        """Return a score between 0 and 1 that depends only on the input."""
        source = array("i", [*request.prompt_token_ids, *(request.token_type_ids or ())]).tobytes()
        numbers = random.Random(source)  # noqa: S311 - a test's score, not a secret
        return ScoreResult(numbers.random(), len(request.prompt_token_ids))

    def cancel(self, request_id: str) -> None:
        """Forget the request before the next step."""
        self._endless.pop(request_id, None)
        if self._settings.ignores_cancel:
            return
        self._prefilling.pop(request_id, None)
        self._waiting.pop(request_id, None)
        if self._running.pop(request_id, None) is not None:
            self._fill()

    @property
    def is_sleeping(self) -> bool:
        return self._sleeping

    async def sleep(self, level: int) -> int:
        """Takes `sleep_s`. Level 2 also forgets the prefix cache, as vLLM's does."""
        await asyncio.sleep(self._settings.sleep_s)
        self._sleeping = True
        if level > 1:
            self._prefix_cache = self._empty_prefix_cache()
        return self._settings.sleep_frees_bytes

    async def wake(self) -> None:
        """Takes `wake_s`."""
        await asyncio.sleep(self._settings.wake_s)
        self._wakes += 1
        if self._wakes <= self._settings.failed_wakes:
            raise EngineError("out of memory")
        self._sleeping = False

    def failure(self) -> str | None:
        return self._failure

    def unload(self) -> None:
        if self._kv_events is not None:
            self._kv_events.close()

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._running),
            waiting=len(self._prefilling) + len(self._waiting),
            gauges={KV_CACHE_USAGE: self._prefix_cache.usage},
        )

    def _prefill_s(self, request: GenerationRequest, answer: _MockRequest, now_s: float) -> float:
        """Seconds until the request's prompt is computed, after those of earlier requests."""
        if self._settings.prefix_cache_blocks:
            words = (request.prompt or "").split()  # without a tokenizer, a word is a token
            adapter = None if request.adapter is None else request.adapter.id
            added = self._prefix_cache.add(
                words if request.prompt_token_ids is None else request.prompt_token_ids,
                owner=(request.cache_salt, adapter),
            )
            answer.cached_tokens = added.hits
            if self._kv_events is not None:
                self._kv_events.publish(request, added, self._settings.block_size)
        rate = self._settings.prefill_tokens_per_second
        if not rate:
            return 0.0
        computed = answer.prompt_tokens - answer.cached_tokens
        if answer.transfer is not None and answer.transfer.params.get("do_remote_prefill"):
            computed = 0
        self._prefilled_s = max(self._prefilled_s, now_s) + computed / rate
        return self._prefilled_s - now_s

    def _admit(self, request_id: str, loop: asyncio.AbstractEventLoop) -> None:
        if (answer := self._prefilling.pop(request_id, None)) is not None:
            self._waiting[request_id] = answer
            self._fill()
        self._schedule(loop)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._running and not self._scheduled:
            self._scheduled = True
            rate = self._settings.tokens_per_second
            loop.call_later(1 / rate if rate else 0, _core.run_step, self._step, loop)

    def _hangs(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the engine hangs, starting with this step or earlier."""
        if self._awake is not None:
            return not self._awake.is_set()
        at = self._settings.hang_after_tokens
        if at is None or not any(answer.sent == at for answer in self._running.values()):
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
        """Admit waiting requests to free slots before the next step."""
        room = self._settings.max_running - len(self._running)
        for request_id in list(itertools.islice(self._waiting, room)):
            self._running[request_id] = self._waiting.pop(request_id)

    def _advance(self, answer: _MockRequest) -> bool:
        """Send the next token; return whether it was the last."""
        settings = self._settings
        if answer.sent == settings.fail_after_tokens:
            answer.sink.fail(EngineError("the mock request failed, as configured"))
            return True
        if answer.sent == settings.die_after_tokens:
            self._die("the mock engine died, as configured")
            return True
        deltas = answer.deltas or self._deltas
        delta = deltas[answer.sent % len(deltas)]
        if answer.adapter is not None:
            delta = CompletionDelta(f" {answer.adapter.name}", delta.token_ids)
        if answer.length == 0:
            delta = CompletionDelta()
        if answer.wants_logprobs:
            delta = self._with_logprobs(answer, delta)
        answer.sent += 1
        if answer.sent < answer.length:
            answer.send(delta)
            return False
        if settings.never_ends:
            answer.send(delta)
            self._endless[answer.request_id] = answer
        else:
            answer.sink.send(_last(answer, delta, settings))
        return True

    def _with_logprobs(self, answer: _MockRequest, delta: CompletionDelta) -> CompletionDelta:
        """Log probabilities of the token; with the first token, those of the prompt too."""
        result = CompletionDelta(delta.text, delta.token_ids)
        params = answer.params
        if answer.sink.logprob_arrays and delta.token_ids:
            rows = [self._logprob_row(token, params) for token in delta.token_ids]
            result.logprob_arrays = LogprobArrays(
                [ids for ids, _ in rows], [values for _, values in rows]
            )
        elif params.logprobs is not None or params.logprob_token_ids:
            result.logprobs = [self._logprobs(token, params) for token in delta.token_ids]
        if params.prompt_logprobs is not None and answer.sent == 0:
            prompt_params = SamplingParams(logprobs=params.prompt_logprobs)
            result.prompt_logprobs = [
                None if position == 0 else self._logprobs(token, prompt_params)
                for position, token in enumerate(answer.prompt_ids)
            ]
        return result

    def _logprobs(self, token: int, params: SamplingParams) -> TokenLogprobs:
        """Each token is half as likely as the one before: the sampled token, then the requested ids
        or the ids that follow it.
        """
        return {
            id: {"logprob": rank * _HALF, "rank": rank, "decoded_token": self._token_text(id)}
            for rank, id in enumerate(dict.fromkeys(self._likeliest(token, params)), start=1)
        }

    def _logprob_row(self, token: int, params: SamplingParams) -> tuple[list[int], list[float]]:
        ids = self._likeliest(token, params)
        ranks = {id: rank for rank, id in enumerate(dict.fromkeys(ids), start=1)}
        return ids, [ranks[id] * _HALF for id in ids]

    def _likeliest(self, token: int, params: SamplingParams) -> list[int]:
        size = len(self._settings.tokens) if self._script is None else self._script.vocabulary_size
        count = size if params.logprobs == -1 else params.logprobs or 1
        following: Sequence[int] = range(token, token + count)
        if self._script is not None:  # the gateway asks its tokenizer for their texts
            following = [id % size for id in following]
        return [token, *(params.logprob_token_ids or following)]

    def _token_text(self, token: int) -> str:
        if self._script is not None:
            return self._script.decode([token])
        vocabulary = self._settings.tokens
        return vocabulary[token] if token < len(vocabulary) else f"<{token}>"

    def _die(self, reason: str) -> None:
        self._failure = reason
        unfinished = (self._running, self._prefilling, self._waiting)
        for answer in [answer for each in unfinished for answer in each.values()]:
            answer.sink.fail(EngineError(reason, error_codes.UNAVAILABLE))
        for each in unfinished:
            each.clear()


def _count_transfer(answer: _MockRequest, counts: TokenCounts, settings: MockSettings) -> None:
    """Report a transfer like vLLM: the location of the KV cache, or how much of it was read."""
    if answer.transfer is None:
        return
    if answer.transfer.params.get("do_remote_decode"):
        host, _, port = settings.kv_address.partition(":")
        counts.kv_transfer_params = {
            "do_remote_prefill": True,
            "remote_request_id": answer.request_id,
            "remote_block_ids": [[1]],
            "remote_host": host,
            "remote_port": int(port),
        }
    else:
        late = time.monotonic_ns() > answer.transfer.expires_ns > 0
        counts.transferred_tokens = 0 if late else answer.prompt_tokens


def _last(answer: _MockRequest, delta: CompletionDelta, settings: MockSettings) -> CompletionDelta:
    reason: FinishReason = "stop" if answer.stops else "length"
    counts = answer.prompt_counts()
    counts.completion_tokens = answer.length
    _count_transfer(answer, counts, settings)
    if not answer.wants_logprobs:  # then it is one of those that all answers share
        delta = CompletionDelta(delta.text, delta.token_ids)
    delta.finish_reason, delta.counts = reason, counts
    return delta


def _check_images(images: Sequence[ImageInput], settings: MockSettings) -> list[str]:
    """Return the descriptions of the images."""
    if len(images) > settings.images_per_prompt:
        raise ValueError(f"images: at most {settings.images_per_prompt}, not {len(images)}")
    return [f"{i.format} {i.width}x{i.height} {i.detail} {i.digest[:8]}" for i in images]


def _check_audio_files(files: Sequence[AudioFile], settings: MockSettings) -> list[str]:
    """Return the descriptions of the audio files."""
    if len(files) > settings.audio_files_per_prompt:
        raise ValueError(f"audio: at most {settings.audio_files_per_prompt}, not {len(files)}")
    return [f"{each.format} {len(each.base64)} {each.digest[:8]}" for each in files]


def _media_deltas(
    request: GenerationRequest, images: list[str], files: list[str], settings: MockSettings
) -> list[CompletionDelta] | None:
    """One delta for each image or audio file that the output describes; None without any."""
    if settings.describe_audio and request.audio is not None:
        return [_description(request.audio)]
    texts = [
        *(images if settings.describe_images else ()),
        *(files if settings.describe_audio else ()),
    ]
    texts = [*(f"{text}; " for text in texts[:-1]), *texts[-1:]]
    return [CompletionDelta(text, (number,)) for number, text in enumerate(texts)] or None


def _description(audio: AudioInput) -> CompletionDelta:
    return CompletionDelta(f"{audio.samples.nbytes // 4} samples {audio.digest[:8]}", (0,))


def _prompt_ids(prompt: str | None, token_ids: Sequence[int] | None) -> Sequence[int]:
    """Without a tokenizer, a word counts as a token."""
    return token_ids if token_ids is not None else range(len((prompt or "").split()))
