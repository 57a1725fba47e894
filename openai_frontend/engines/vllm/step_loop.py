"""Drives vLLM's engine client step by step, without a task, queue or RequestOutput per token.

`AsyncLLM.generate` builds several objects and wakes a task for each token of each stream. Here, the
callback that reads a step walks its outputs. Tokens that are only text bypass Python; a plain-text
request has only a detokenizer and a sink. Requests that need more (logprobs) go through vLLM's own
OutputProcessor in the same walk.

It uses vLLM's internal classes: `capabilities.STEP_LOOP` lists what it needs of them.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from openai_frontend.engines.engine import (
    KV_CACHE_USAGE,
    DeltaSink,
    EngineError,
    EngineStats,
    Sample,
)
from openai_frontend.engines.vllm import conversion, kv_transfer, versions, zmq_io
from openai_frontend.engines.vllm.grammars.backends import GrammarPreparer
from openai_frontend.engines.vllm.media.images import SentMedia
from openai_frontend.engines.vllm.request_state import (
    DeltaCollector,
    TextRequestState,
    takes_arrays,
)
from openai_frontend.engines.vllm.stats import PREEMPTIONS, engine_samples
from openai_frontend.engines.vllm.text_decoding import TextDecoding
from openai_frontend.errors import caught
from openai_frontend.generation import GenerationRequest
from openai_frontend.triton import _core, error_codes

logger = logging.getLogger(__name__)

NUM_PREEMPTIONS = "vllm:num_preemptions"  # total


def _is_synchronous(prompt: Any, params: Any) -> bool:
    """Nothing to wait for: no text or bad words to tokenize, no new media, no grammar to check."""
    return (
        type(prompt) is dict
        and "type" in prompt
        and params.structured_outputs is None
        and not params.bad_words
    )


def _is_cancelled(sink: DeltaSink) -> bool:
    """A function, because mypy would assume that the property cannot change across an await."""
    return sink.cancelled


class StepLoop:
    """All requests of one AsyncLLM whose own output handler does not run."""

    def __init__(self, engine: Any, grammars: GrammarPreparer, *, model: str) -> None:
        self._engine = engine
        self._model = model  # its name in Triton
        self._grammars = grammars
        self._core = engine.engine_core
        self._processor = engine.output_processor
        self._streams: dict[str, TextRequestState] = {}
        self._collected: dict[str, DeltaSink] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None  # set with the first request
        self._steps: asyncio.Task[None] | None = None
        self._supported_tasks: Any = None
        self._direct_sockets = zmq_io.is_supported()
        self._writer: zmq_io.RequestSender | None = None
        self._logprobs: Callable[[Any], Any] | None = None  # from what the engine has sent
        self._media: SentMedia | None = None  # set with the first request that has some
        self._decoding: TextDecoding | None = None
        self._knows_decoding = False  # from the first request on
        self.failure: str | None = None  # why the loop has stopped
        self._transfers = engine.vllm_config.kv_transfer_config is not None
        self._scheduler_stats: Any = None  # the latest SchedulerStats of vLLM
        config = engine.model_config
        self._templates = conversion.RequestTemplates(config.max_model_len, config.get_vocab_size())

    @property
    def running(self) -> int:
        """Number of unfinished requests in the engine."""
        return len(self._streams) + len(self._collected)

    def stats(self) -> EngineStats:
        """Load of the engine; its scheduler reports four times a second while it works."""
        reported, running = self._scheduler_stats, self.running
        preemptions = (
            0 if reported is None else (reported.kv_connector_stats or {}).get(PREEMPTIONS, 0)
        )
        # Without requests, only prompts that wait for another engine use the cache.
        usage = reported.kv_cache_usage if reported is not None and self._transfers else 0.0
        gauges = {KV_CACHE_USAGE: usage, NUM_PREEMPTIONS: float(preemptions)}
        if reported is None or not running:
            return EngineStats(running=running, gauges=gauges)
        waiting = min(reported.num_waiting_reqs + reported.num_skipped_waiting_reqs, running)
        return EngineStats(
            running=running - waiting,
            waiting=waiting,
            gauges={**gauges, KV_CACHE_USAGE: reported.kv_cache_usage},
        )

    def samples(self) -> Iterator[Sample]:
        return engine_samples(
            self._engine.vllm_config,
            self._scheduler_stats,
            model=self._model,
            at_work=bool(self.running),
        )

    def add(
        self, request_id: str, prompt: Any, params: Any, sink: DeltaSink, **options: Any
    ) -> None:
        """Send a request to the engine. Failures, now or later, go to the sink.

        `prompt` is vLLM's input, or a task that returns it.
        `options` are InputProcessor's: `priority`, and `lora_request` or a task that returns it.
        """
        if self._steps is None:
            self.start()
        at_once = self._writer and self._supported_tasks and _is_synchronous(prompt, params)
        if at_once and not isinstance(options.get("lora_request"), asyncio.Task):
            self._add_now(request_id, prompt, params, sink, options)
        else:
            self._spawn(self._add(request_id, prompt, params, sink, options))

    def add_known(self, request: GenerationRequest, params: Any, sink: DeltaSink) -> bool:
        """Send a request of token ids as `add` does, but without vLLM's input processor. False if
        that is needed (`conversion.RequestTemplates`).
        """
        prompt = request.prompt_token_ids
        if self._writer is None or prompt is None:
            return False
        if params.logprobs is not None and not takes_arrays(sink, params):
            return False
        if (made := self._templates.make(params, request, prompt)) is None:
            return False
        with self._adding(request.request_id, params, sink):
            self._check_alive()
            self._register(made, sink, prompt)
            if not self._writer.add(made):
                self._spawn(self._send(request.request_id, made, sink))
        return True

    def cancel(self, request_id: str) -> None:
        """Abort a request. Unknown and finished requests are ignored."""
        known = self._streams.pop(request_id, None) or self._drop_collected(request_id)
        if self._media is not None:
            self._media.unanswered.pop(request_id, None)
        if known is not None:
            self._spawn(self._core.abort_requests_async([request_id]))

    def close(self) -> None:
        """Stop the loop. Works on any thread, once no request is left."""
        if self._loop is not None and self._steps is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._steps.cancel)

    def _add_now(
        self, request_id: str, prompt: Any, params: Any, sink: DeltaSink, options: dict[str, Any]
    ) -> None:
        """Without a task and without an extra iteration of the event loop."""
        with self._adding(request_id, params, sink):
            request = self._engine.input_processor.process_inputs(
                request_id, prompt, params, supported_tasks=self._supported_tasks, **options
            )
            self._named(request, request_id)
            self._check_alive()
            self._register(request, sink, request.prompt_token_ids)
            self._keep(request_id, params, request)
            if request.mm_features:
                self._leave_out_media(request)
            if self._writer is None or not self._writer.add(request):
                self._spawn(self._send(request_id, request, sink))

    def _keep(self, request_id: str, params: Any, request: Any) -> None:
        """Make later requests with these parameters without vLLM's input processor."""
        if request_id in self._streams:
            self._templates.keep(params, request)

    async def _send(self, request_id: str, request: Any, sink: DeltaSink) -> None:
        with self._adding(request_id, request.sampling_params, sink):
            await self._core.add_request_async(request)

    def _adding(self, request_id: str, params: Any, sink: DeltaSink) -> caught:
        """Any exception of vLLM fails only this request."""
        return caught(partial(self._fail, request_id, params, sink))

    def _fail(self, request_id: str, params: Any, sink: DeltaSink, error: Exception) -> None:
        self._streams.pop(request_id, None)
        self._drop_collected(request_id)
        self._return_unread(request_id, kv_transfer.unread(params))
        sink.fail(conversion.translated(error, params))

    def _return_unread(self, request_id: str, transfer: Mapping[str, Any] | None) -> None:
        """For a request that does not get as far as the engine, or too late."""
        if transfer is not None and self.failure is None:
            self._spawn(kv_transfer.reject(self._engine, request_id, transfer))

    def _check_alive(self) -> None:
        if self.failure is not None:
            raise EngineError(self.failure, error_codes.UNAVAILABLE)

    def _drop_collected(self, request_id: str) -> DeltaSink | None:
        """Remove a request from vLLM's OutputProcessor. None if it does not have it."""
        sink = self._collected.pop(request_id, None)
        if sink is not None and (state := self._processor.request_states.get(request_id)):
            state.queue = None  # otherwise it would get a final output, which may be what fails
            self._processor.abort_requests([request_id], internal=True)
        return sink

    async def _add(
        self, request_id: str, prompt: Any, params: Any, sink: DeltaSink, options: dict[str, Any]
    ) -> None:
        with self._adding(request_id, params, sink):
            request = await self._processed(request_id, prompt, params, options)
            if _is_cancelled(sink):
                self._return_unread(request_id, kv_transfer.unread(params))
                return
            self._check_alive()
            self._register(request, sink, request.prompt_token_ids)
            self._keep(request_id, params, request)
            if request.mm_features:
                self._leave_out_media(request)
            if self._writer is None or not self._writer.add(request):
                await self._core.add_request_async(request)
        if _is_cancelled(sink):
            # The caller left while the prompt was being prepared, when there was nothing to abort
            # yet. A request that failed is unknown by now.
            self.cancel(request_id)

    async def _processed(
        self, request_id: str, prompt: Any, params: Any, options: dict[str, Any]
    ) -> Any:
        if isinstance(prompt, asyncio.Task):
            prompt = await prompt
        if isinstance(loading := options.get("lora_request"), asyncio.Task):
            options = {**options, "lora_request": await asyncio.shield(loading)}
        if self._supported_tasks is None:
            self._supported_tasks = await self._engine.get_supported_tasks()
        if params.structured_outputs is not None:
            params = await self._grammars.prepare(params)
        processor = self._engine.input_processor
        known = {"supported_tasks": self._supported_tasks, **options}
        if _is_synchronous(prompt, params):
            request = processor.process_inputs(request_id, prompt, params, **known)
        else:
            process = versions.process_inputs_async(processor)
            request = await process(request_id, prompt, params, **known)
        return self._named(request, request_id)

    def _named(self, request: Any, request_id: str) -> Any:
        params = request.sampling_params
        conversion.check_bad_words(params)
        if params.extra_args:
            self._return_unread(request_id, kv_transfer.take_late(params))
        request.external_req_id = request_id
        return request

    def _register(self, request: Any, sink: DeltaSink, prompt: Sequence[int]) -> None:
        params = request.sampling_params
        decoding = self._text_decoding()
        plain = params.num_logprobs is None and params.prompt_logprobs is None
        if decoding is not None and (plain or takes_arrays(sink, params)):
            whole = plain and conversion.is_whole(params)
            text = decoding.text(request, prompt, whole=whole)
            state = TextRequestState(sink, request, text, len(prompt))
            self._streams[request.request_id] = state
            return
        collector = DeltaCollector(sink, request)
        self._processor.add_request(request, None, None, 0, collector)
        if decoding is not None:
            state = self._processor.request_states[request.request_id]
            decoding.bound(state.detokenizer, prompt)
        self._collected[request.request_id] = sink

    def _text_decoding(self) -> TextDecoding | None:
        if not self._knows_decoding:
            self._decoding = TextDecoding.of(self._processor.tokenizer)
            self._knows_decoding = True
        return self._decoding

    def start(self) -> None:
        """Read the engine's replies. Must run before any call to it: its first reply starts the
        client's own output task.
        """
        if self._steps is not None:
            return
        self._loop = asyncio.get_running_loop()
        reader = zmq_io.output_reader(self._core, self._step) if self._direct_sockets else None
        if reader is not None:
            self._writer = zmq_io.RequestSender(self._core)
            self._logprobs = reader.decoder.logprobs
        steps = (
            reader.start() if reader is not None else self._loop.create_task(self._await_steps())
        )
        self._steps = self._loop.create_task(self._run(steps))

    async def _await_steps(self) -> None:
        while True:
            self._step(await self._core.get_output_async())

    async def _run(self, steps: asyncio.Task[None]) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            await steps
        except (EngineDeadError, asyncio.CancelledError):
            self._fail_all(conversion.ENGINE_DIED)
        except Exception as error:  # the task's edge: all requests end
            logger.exception("the step loop failed")
            # Without its message, which may quote a request: this reason is shown to other clients.
            self._fail_all(f"the step loop failed: {type(error).__name__}")

    def _step(self, step: Any) -> None:
        streams = self._streams
        if step.scheduler_stats is not None:
            self._scheduler_stats = step.scheduler_stats
        rest: list[Any] = []
        outputs, failed = _core.advance_all(step.outputs, streams)
        stopped = self._fail_unsent(failed) if failed else []
        for output in self._complete(outputs) if outputs else ():
            request_id = output.request_id
            stream = streams.get(request_id)
            if stream is None:
                rest.append(output)
                continue
            try:
                stopped_by_string = stream.advance(output)
            except Exception as error:  # only this stream fails
                logger.exception("sending a step's output failed")
                stream.sink.fail(error)
                stopped_by_string = output.finish_reason is None
            if stopped_by_string:
                stopped.append(request_id)
            if stopped_by_string or output.finish_reason is not None:
                del streams[request_id]
        if rest:
            stopped += self._process_rest(rest, step.timestamp)
        if stopped:
            self._spawn(self._core.abort_requests_async(stopped))

    def _complete(self, outputs: list[Any]) -> list[Any]:
        """Outputs as vLLM has them, without those whose media the engine gets once more."""
        if self._media is not None and self._media.unanswered:
            outputs = [each for each in outputs if not self._sent_again(self._media, each)]
        for output in outputs:
            if self._logprobs is not None and output.new_logprobs is not None:
                output.new_logprobs = self._logprobs(output.new_logprobs)
        return outputs

    def _fail_unsent(self, failed: list[tuple[str, str]]) -> list[str]:
        for request_id, cause in failed:
            unsent = EngineError(cause)
            logger.error("sending a step's output failed: %s", unsent)
            self._streams.pop(request_id).sink.fail(unsent)
        return [request_id for request_id, _ in failed]

    def _leave_out_media(self, request: Any) -> None:
        if self._media is None:
            self._media = SentMedia(self._engine)
        self._media.leave_out(request)

    def _sent_again(self, media: SentMedia, output: Any) -> bool:
        """Whether the engine lacked media of a request, which it now gets once more."""
        if (request := media.lost(output)) is None:
            return False
        logger.info("request %s: the engine lost its media; sending them again", request.request_id)
        stream = self._streams.get(request.request_id)
        sink = self._collected[request.request_id] if stream is None else stream.sink
        self._spawn(self._send(request.request_id, request, sink))
        return True

    def _process_rest(self, rest: list[Any], timestamp: float) -> list[str]:
        stopped: list[str] = []
        for output in rest:  # one at a time, so that the failing output is known
            request_id, finished = output.request_id, output.finish_reason is not None
            if output.prefill_stats is not None and request_id in self._collected:
                self._processor.request_states[request_id].queue.stats = output.prefill_stats
            try:
                aborted = self._processor.process_outputs([output], timestamp, None).reqs_to_abort
            except Exception as error:  # as above
                logger.exception("sending a step's output failed")
                if (sink := self._drop_collected(request_id)) is not None:
                    sink.fail(error)
                aborted = [] if finished else [request_id]
            if finished or aborted:
                self._collected.pop(request_id, None)
            stopped += aborted
        return stopped

    def _fail_all(self, reason: str) -> None:
        self.failure = reason
        error = EngineError(reason, error_codes.UNAVAILABLE)
        sinks = [stream.sink for stream in self._streams.values()] + list(self._collected.values())
        self._streams.clear()
        self._collected.clear()
        for sink in sinks:
            sink.fail(error)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
