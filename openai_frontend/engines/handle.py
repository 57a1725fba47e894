"""One loaded engine: passes it Triton's requests and reloads it after it has died."""

import asyncio
import itertools
import logging
import multiprocessing
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NoReturn, TypeVar

from openai_frontend.engines import input_tensors, output_tensors, pooling_tensors
from openai_frontend.engines.engine import Engine, EngineError, EngineStats, ModelFacts, Sample
from openai_frontend.engines.media import check_audio
from openai_frontend.engines.response_writer import ResponseWriter, fail
from openai_frontend.errors import caught, describe_exception
from openai_frontend.generation import Adapter
from openai_frontend.pooling import EmbedRequest, ScorePairRequest
from openai_frontend.triton import error_codes
from openai_frontend.triton._core import Execution, PendingDeltas

logger = logging.getLogger(__name__)

Pooled = TypeVar("Pooled", EmbedRequest, ScorePairRequest)
Result = TypeVar("Result")

# Inputs of one batch that start in the same iteration of the event loop: vLLM takes about 0.1 ms
# for each
_STARTED_TOGETHER = 8
_LOOK_S = 0.25  # how often a sleep or a wake looks whether the engine is alive


class EngineHandle:
    """One loaded engine, as the in-process backend sees it."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        facts: ModelFacts,
        make: Callable[[], tuple[Engine, ModelFacts]],
    ) -> None:
        """`make` loads the engine again from the same folder: blocking, raises RuntimeError."""
        self.facts = facts
        self._name = name
        self._engine = engine
        self._make = make
        self._changing = threading.Lock()  # Triton may unload the model during a restart
        self._loaded = True
        self._unloaded = False
        self._down: str | None = None  # why requests are refused during a restart
        self._resting: asyncio.Task[int] | None = None  # falls asleep, or sleeps; None: awake
        self._waking: asyncio.Task[None] | None = None
        self._wake_failure: str | None = None  # a restart repairs it
        self._unsent = PendingDeltas()
        self._numbers = itertools.count(1)
        self._live: dict[Execution, str] = {}
        self._tasks: dict[Execution, asyncio.Task[None]] = {}
        self._adapters: Mapping[str, Adapter] = {}
        self._adapting = threading.Lock()  # adapters may change during a restart

    def set_adapters(self, adapters: Mapping[str, Adapter]) -> None:
        """Set the adapters that requests may name from now on."""
        with self._adapting:
            self._adapters = adapters
            self._tell_adapters(self._engine)

    def _tell_adapters(self, engine: Engine) -> None:
        with self._logged("set_adapters"):
            engine.set_adapters(self._adapters)

    def start(self, execution: Execution) -> None:
        """Decode a request's tensors and start it."""
        if self._is_put_off(execution):
            return
        inputs = execution.inputs()
        # Triton's request ids come from the callers and may repeat.
        request_id = f"{self._name}-{next(self._numbers)}-{execution.request_id}"
        context = self.facts.max_model_len or 0  # the loader has checked that it is known
        try:
            if "embedding_request" in inputs:
                embeddings = pooling_tensors.read_embeddings(inputs, request_id, context)
                self._check_pooling(embeddings[0])
                if embeddings[0].images:
                    self._check_takes_images()
                self._run(execution, self._embed(embeddings, execution))
                return
            if "score_request" in inputs:
                pairs = pooling_tensors.read_scores(inputs, request_id, context)
                self._run(execution, self._score(pairs, execution))
                return
            request = input_tensors.read_generation(
                inputs, request_id, context, self._adapters, execution.parameters
            )
            request.caller_id = execution.request_id
            if request.images:
                self._check_takes_images()
            if request.audio_files and self.facts.audio is None:
                raise ValueError("audio: the model does not take audio files")
            transcription = self.facts.transcription
            if request.audio is not None or transcription is not None:
                check_audio(request.audio, transcription)
            sink = ResponseWriter(execution, request, inputs, self._live, self._unsent)
        except (EngineError, ValueError) as error:
            fail(execution, error)
            return
        self._live[execution] = request_id
        started = None
        with caught(sink.fail):
            started = self._engine.generate(request, sink)
        if started is not None:
            answering = self._run(execution, self._answer(started, sink))
            # A task that is cancelled before its first step never awaits the coroutine.
            answering.add_done_callback(lambda _: started.close())

    def _is_put_off(self, execution: Execution) -> bool:
        """Whether the engine cannot take the request now, which then fails or waits for a wake."""
        if self._down is not None:
            execution.fail(error_codes.UNAVAILABLE, self._down)
            return True
        if self._resting is None:
            return False
        self._run(execution, self._start_awake(execution))  # Triton's own callers use no queue
        return True

    async def _start_awake(self, execution: Execution) -> None:
        with caught(partial(fail, execution)):
            await self.wake()
            asyncio.get_running_loop().call_soon(self.start, execution)

    @property
    def is_sleeping(self) -> bool:
        """Whether requests have to wait until the engine wakes; also while it falls asleep."""
        return self._resting is not None

    async def sleep(self, level: int) -> int:
        """Let the engine sleep and return the freed bytes; a request, or `wake`, wakes it.

        Raises EngineError if it serves requests or already sleeps.
        """
        if self._live or self._tasks or self._resting is not None:
            reason = "it already sleeps" if self._resting is not None else "it serves requests"
            raise EngineError(reason, error_codes.UNAVAILABLE)
        falling = self._while_alive(self._engine.sleep(level))
        self._resting = asyncio.get_running_loop().create_task(falling)
        self._resting.add_done_callback(self._fell_asleep)
        return await asyncio.shield(self._resting)

    def _fell_asleep(self, resting: asyncio.Task[int]) -> None:
        if resting.cancelled() or resting.exception() is not None:
            self._resting = None

    async def wake(self) -> None:
        """Wake the engine. Concurrent calls share one wake, which continues if a caller leaves.

        Raises the engine's error; `failure` then has it until a restart.
        """
        if self._resting is None:
            return
        if self._waking is None:
            self._waking = asyncio.get_running_loop().create_task(self._wake(self._resting))
            self._waking.add_done_callback(self._woken)
        await asyncio.shield(self._waking)

    async def _wake(self, resting: asyncio.Task[int]) -> None:
        def report(error: Exception) -> NoReturn:
            self._wake_failure = f"its engine did not wake: {describe_exception(error)}"
            raise error

        await asyncio.wait([resting])
        if resting.exception() is not None:  # it did not fall asleep
            return
        with caught(report):
            await self._while_alive(self._engine.wake())
        self._resting = None

    async def _while_alive(self, call: Coroutine[Any, Any, Result]) -> Result:
        """Await a call of the engine. vLLM's does not end if the engine's process dies meanwhile.

        Raises EngineError then.
        """
        engine = self._engine
        task = asyncio.get_running_loop().create_task(call)
        try:
            while not (await asyncio.wait([task], timeout=_LOOK_S))[0]:
                if (reason := engine.failure()) is not None:
                    raise EngineError(reason, error_codes.UNAVAILABLE)
        finally:
            task.cancel()
        return task.result()

    def _woken(self, waking: asyncio.Task[None]) -> None:
        if self._waking is waking:
            self._waking = None
        if not waking.cancelled():
            waking.exception()  # mark as retrieved: every caller may have left

    def _check_pooling(self, request: EmbedRequest) -> None:
        dimensions, most = request.dimensions, self.facts.dimensions
        if request.task != "embed" and request.task not in (self.facts.tasks or ()):
            raise ValueError(f"embedding_request: the model has no task '{request.task}'")
        if dimensions is not None and most is not None and dimensions > most:
            raise ValueError(f"embedding_request: dimensions: at most {most}, not {dimensions}")

    def _check_takes_images(self) -> None:
        if self.facts.images is None:
            raise ValueError("image: the model does not take images")

    def cancel(self, execution: Execution) -> None:
        """End a request whose caller is gone."""
        self._end(execution, error_codes.CANCELLED, "the request was cancelled")

    def _end(self, execution: Execution, code: int, reason: str) -> None:
        request_id = self._live.pop(execution, None)
        if (task := self._tasks.get(execution)) is not None:
            task.cancel()
        try:
            if request_id is not None:
                self._engine.cancel(request_id)
        finally:
            execution.fail(code, reason)

    def unload(self) -> None:
        """Release the engine. Called on one of Triton's threads, when no request is in flight."""
        with self._changing:
            self._unloaded = True
            if self._loaded:
                self._loaded = False
                self._engine.unload()

    def interrupt(self, reason: str) -> None:
        """Fail all requests, and new ones until `restart` is done. Called on the event loop."""
        self._down = reason
        for execution in {**self._live, **self._tasks}:
            with self._logged("cancelling a request"):
                self._end(execution, error_codes.UNAVAILABLE, reason)

    def restart(self) -> None:
        """Load the engine again, after `interrupt`.

        Blocks, so call it on a thread. Raises like `load`; it may then be called again.
        """
        with self._changing:
            if self._unloaded:
                return
            if self._loaded:
                self._loaded = False
                with self._logged("unloading the failed engine"):
                    self._engine.unload()
            try:
                engine, facts = self._make()
            finally:
                # vLLM kills a process that hangs but does not wait for it. This call reaps it.
                multiprocessing.active_children()
            with self._adapting:
                self._tell_adapters(engine)
                self._engine, self._loaded, self._down = engine, True, None
                self._resting = self._waking = self._wake_failure = None
            if facts != self.facts:  # else the same object, by which a model is known again
                self.facts = facts

    def _logged(self, action: str) -> AbstractContextManager[None]:
        """For calls to an engine whose failure must not stop the caller."""

        def log(error: Exception) -> None:
            logger.error("%s: %s failed", self._name, action, exc_info=error)

        return caught(log)

    async def probe(self) -> str | None:
        """Return once the engine has answered a small request: None, or why it failed."""
        failures: list[Exception] = []
        with caught(failures.append):
            await self._engine.warm_up()
        return describe_exception(failures[0]) if failures else None

    def unsent(self, begun: bool) -> int:
        """Return how many deltas made no response; for a request that has begun to answer, those of
        streams alone.
        """
        return self._unsent.streamed if begun else self._unsent.streamed + self._unsent.whole

    def failure(self) -> str | None:
        """Why the engine can no longer serve; None while it can, and after unloading."""
        if self._unloaded:
            return None
        return self._down or self._wake_failure or self._engine.failure()

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def samples(self) -> Iterable[Sample]:
        """Additional samples for `/metrics`."""
        return self._engine.samples()

    def _run(
        self, execution: Execution, coroutine: Coroutine[Any, Any, None]
    ) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[execution] = task
        task.add_done_callback(partial(self._task_ended, execution))
        return task

    def _task_ended(self, execution: Execution, task: asyncio.Task[None]) -> None:
        if self._tasks.get(execution) is task:
            del self._tasks[execution]

    async def _answer(self, answer: Coroutine[Any, Any, None], sink: ResponseWriter) -> None:
        with caught(sink.fail):
            await answer
        if not sink.ended:
            sink.fail(EngineError("the engine ended the answer without a finish reason"))

    async def _embed(self, requests: Sequence[EmbedRequest], execution: Execution) -> None:
        with caught(partial(fail, execution)):
            results = await _gather(self._engine.embed, requests)
            vectors = [each.embedding for each in results]
            if (width := results[0].width) is not None:
                if len(results) > 1:
                    raise EngineError("vectors of tokens are those of one input per request")
                counts = _counted([results[0].prompt_tokens])
                execution.send(
                    [output_tensors.token_vectors_output(vectors[0], width), counts], final=True
                )
                return
            if len(vectors) > 1 and len({each.nbytes for each in vectors}) > 1:
                raise EngineError("the engine returned vectors of different lengths")
            outputs = [
                output_tensors.vectors_output("embedding", vectors),
                _counted([each.prompt_tokens for each in results]),
            ]
            execution.send(outputs, final=True)

    async def _score(self, requests: Sequence[ScorePairRequest], execution: Execution) -> None:
        with caught(partial(fail, execution)):
            results = await _gather(self._engine.score, requests)
            outputs = [
                output_tensors.float_output("score", *[each.score for each in results]),
                _counted([each.prompt_tokens for each in results]),
            ]
            execution.send(outputs, final=True)


def _counted(prompt_tokens: Sequence[int]) -> output_tensors.Output:
    return output_tensors.counts_output("num_input_tokens", prompt_tokens)


async def _gather(
    compute: Callable[[Pooled], Coroutine[Any, Any, Result]], requests: Sequence[Pooled]
) -> list[Result]:
    """Results in the order of the requests, which run at the same time. The first failure, or
    cancelling this, cancels all of them.
    """
    if len(requests) == 1:
        return [await compute(requests[0])]
    loop, tasks = asyncio.get_running_loop(), []
    try:
        for at, request in enumerate(requests):
            tasks.append(loop.create_task(compute(request)))
            if (at + 1) % _STARTED_TOGETHER == 0:
                await asyncio.sleep(0)
        return await asyncio.gather(*tasks)
    except ValueError as error:
        ended = [task.done() and not task.cancelled() for task in tasks]
        failed = next(
            at for at, task in enumerate(tasks) if ended[at] and task.exception() is error
        )
        raise ValueError(f"input[{failed}]: {error}") from error
    finally:
        if running := [task for task in tasks if not task.done()]:
            for task in running:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
