"""A model that vLLM serves. As in NVIDIA's backend, `<version>/model.json` contains vLLM's engine
arguments.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

from openai_frontend.engines.engine import (
    DeltaSink,
    Engine,
    EngineError,
    EngineStats,
    ModelFacts,
    ModelSpec,
    Sample,
)
from openai_frontend.engines.vllm import (
    arguments,
    capabilities,
    conversion,
    facts,
    kv_transfer,
    versions,
)
from openai_frontend.engines.vllm.grammars.backends import GrammarPreparer
from openai_frontend.engines.vllm.lora import LoRALoader
from openai_frontend.engines.vllm.media import audio
from openai_frontend.engines.vllm.media import prompts as prompt_media
from openai_frontend.engines.vllm.media.audio import PromptAudio
from openai_frontend.engines.vllm.media.images import MediaCache, max_items
from openai_frontend.engines.vllm.media.prompts import AUDIO, IMAGE, PromptMedia
from openai_frontend.engines.vllm.processes import children as processes
from openai_frontend.engines.vllm.processes import environment, failures
from openai_frontend.engines.vllm.sleep import EngineSleep
from openai_frontend.engines.vllm.step_loop import StepLoop
from openai_frontend.generation import (
    Adapter,
    CompletionDelta,
    GenerationRequest,
    SamplingParams,
    TokenCounts,
)
from openai_frontend.pooling import (
    TOKEN_TASKS,
    EmbeddingResult,
    EmbedRequest,
    PoolingTask,
    ScorePairRequest,
    ScoreResult,
)
from openai_frontend.triton import error_codes

logger = logging.getLogger(__name__)

# On CPUs with AMX, a bfloat16 engine dies of SIGILL if its first prompt has 3 tokens or fewer: only
# a longer batch initialises AMX. So the warm-up sends a longer prompt, whatever the dtype.
WARM_UP_TOKENS = 8
WARM_UP_TIMEOUT_S = 120
_DID_NOT_START = "vLLM's engine process did not start"
CAPABILITY = "openai_frontend_engine_capability"


class VLLMEngine(Engine):
    """Runs vLLM with continuous batching.

    `parameters: step_loop: "false"` in config.pbtxt generates through AsyncLLM.generate instead of
    the step loop.
    """

    @classmethod
    def describe(cls, model: ModelSpec) -> ModelFacts:
        """Tasks and media that the model's files show. Does not import vLLM."""
        return facts.from_files(model)

    def load(self, model: ModelSpec) -> ModelFacts:
        """Start the engine and its process. Raises ValueError if model.json is invalid."""
        self._warm_ups = itertools.count()
        self._rejections: set[asyncio.Task[None]] = set()  # of KV transfers
        with environment.restored():
            return self._load(model)

    def _load(self, model: ModelSpec) -> ModelFacts:
        arguments.set_environment()
        with arguments.terminal_signals_blocked():
            processes.prepare()
        self._vllm = versions.installed()
        for report in self._vllm.reports():
            logger.warning("model %s: %s", model.name, report)
        model.report_phase("importing vLLM")
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        model.report_phase("starting the engine")
        engine_arguments = arguments.engine_arguments(model)
        processes.install()
        with arguments.terminal_signals_blocked(), failures.collected() as self._failures:
            try:
                self._engine: Any = AsyncLLM.from_engine_args(
                    engine_arguments, usage_context=UsageContext.OPENAI_API_SERVER
                )
            except RuntimeError as error:  # its process did not start
                if self._failures.first() is None:
                    raise
                raise RuntimeError(self._failures.describe(_DID_NOT_START)) from error
        # `unload` needs these, also after a failure below
        self._steps: StepLoop | None = None
        self._audio: PromptAudio | None = None
        self._media: PromptMedia | None = None
        self._sleep = EngineSleep(self._engine)
        self._adapters = LoRALoader(self._engine)
        self._grammars = GrammarPreparer(self._engine)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self.unload)
            reported = self._prepare_requests(model)
            on_failure.pop_all()
        return reported

    def _prepare_requests(self, model: ModelSpec) -> ModelFacts:
        """Start everything beside the engine."""
        model.report_phase("starting the processes for grammars and media")
        config = self._engine.model_config
        self._params = conversion.SharedParams(conversion.model_defaults(config))
        self._pooling = config.runner_type == "pooling"
        if not self._pooling:
            self._grammars.start()
        self._steps = self._step_loop(model)
        self._audio = self._prompt_audio(model)
        self._media = self._prompt_media(model)
        reported = facts.from_engine(
            model,
            self._engine,
            audio=self._audio,
            media=self._media,
            limitations=(*self._vllm.reports(), *self._media_limitations),
        )
        self._tasks = reported.tasks or ()
        return reported

    async def warm_up(self) -> None:
        """Run a prompt of more than 3 tokens through the engine."""
        token_ids = [1] * min(WARM_UP_TOKENS, self._engine.model_config.max_model_len - 1)
        async with asyncio.timeout(WARM_UP_TIMEOUT_S):
            if self._pooling:
                await self._warm_up_pooling(token_ids)
                return
            sink = _WarmUpSink()
            request = GenerationRequest(
                request_id=f"warm-up-{next(self._warm_ups)}",  # an earlier one may hang
                prompt_token_ids=token_ids,
                audio=None if self._audio is None else self._audio.silence(),
                sampling_params=SamplingParams(max_tokens=1, temperature=0.0),
            )
            try:
                if (answer := self.generate(request, sink)) is not None:
                    await answer
                await sink.ended
            finally:
                self.cancel(request.request_id)  # no effect if it has finished

    def generate(
        self, request: GenerationRequest, sink: DeltaSink
    ) -> Coroutine[Any, Any, None] | None:
        """Generate in the step loop, or in a task that uses AsyncLLM.generate."""
        if self._pooling:
            raise EngineError("the model does not generate text", error_codes.UNSUPPORTED)
        if request.kv_transfer is None:
            return self._begin(request, sink)
        if request.kv_transfer.rejected:
            return self._reject(request, sink)
        with contextlib.ExitStack() as undo:
            undo.callback(self._return_unread, request)
            generation = self._begin(request, sink)
            undo.pop_all()
        return generation

    def _begin(
        self, request: GenerationRequest, sink: DeltaSink
    ) -> Coroutine[Any, Any, None] | None:
        with conversion.translate_errors():
            if request.sampling_params.thinking_token_budget is not None:
                self._check_thinking_budget()
            params = self._params.convert(request.sampling_params, stream=request.stream)
        if request.kv_transfer is not None:
            params = kv_transfer.attached(params, request.kv_transfer)
        self._check_priority(request.priority)
        steps = self._steps if self._audio is None and request.kv_transfer is None else None
        if steps is not None and steps.add_known(request, params, sink):
            return None
        options: dict[str, Any] = {"priority": request.priority}
        if request.adapter is not None:
            options["lora_request"] = self._adapters.acquire(request.adapter, sink)
        prompt = self._prompt(request, request.cache_salt)
        if self._steps is None:
            return self._generate(request, prompt, params, sink, options)
        self._steps.add(request.request_id, prompt, params, sink, **options)
        return None

    async def _reject(self, request: GenerationRequest, sink: DeltaSink) -> None:
        if request.kv_transfer is not None:
            self._ready_for_replies()
            await kv_transfer.reject(self._engine, request.request_id, request.kv_transfer.params)
        sink.send(CompletionDelta(finish_reason="abort", counts=TokenCounts()))

    def _return_unread(self, request: GenerationRequest) -> None:
        """For a request that does not get as far as the engine."""
        transfer = request.kv_transfer
        if transfer is not None and transfer.params.get("do_remote_prefill"):
            self._ready_for_replies()
            rejection = kv_transfer.reject(self._engine, request.request_id, transfer.params)
            task = asyncio.get_running_loop().create_task(rejection)
            self._rejections.add(task)
            task.add_done_callback(self._rejections.discard)

    def _ready_for_replies(self) -> None:
        if self._steps is not None:
            self._steps.start()

    def _prompt(self, request: GenerationRequest | EmbedRequest, salt: str | None = None) -> Any:
        """vLLM's input, or a task that returns it."""
        conversion.check_token_ids(request.prompt_token_ids)
        if self._audio is not None and isinstance(request, GenerationRequest):
            return self._audio.prepare(request)
        if not (request.images or (isinstance(request, GenerationRequest) and request.audio_files)):
            return conversion.prompt(request.prompt, request.prompt_token_ids, salt)
        if self._media is None:
            kind, what = ("image", "images") if request.images else ("audio", "audio files")
            raise ValueError(f"{kind}: the model does not take {what}")
        return self._media.prepare(request)

    def _check_thinking_budget(self) -> None:
        """vLLM would refuse too, but with the names of its command-line flags."""
        reasoning = self._engine.vllm_config.reasoning_config
        if reasoning is None or not reasoning.enabled:
            raise ValueError(
                "thinking_token_budget: not supported by this model: its model.json "
                "must set reasoning_parser or reasoning_config"
            )

    def set_adapters(self, adapters: Mapping[str, Adapter]) -> None:
        """Unload adapters that are no longer listed, each once no request needs it. New adapters
        load with their first request.
        """
        self._adapters.keep(adapters.values())

    async def embed(self, request: EmbedRequest) -> EmbeddingResult:
        """Return the pooled vector, or the scores of all classes, as float32; or those of each
        token, without the tokens that the model's pooler leaves out.
        """
        if request.task not in self._tasks:
            return await super().embed(request)
        from vllm.pooling_params import PoolingParams

        self._check_dimensions(request.dimensions)
        params = PoolingParams(
            task=request.task,
            dimensions=request.dimensions,
            use_activation=request.use_activation,
        )
        prompt = self._prompt(request, request.cache_salt)
        if isinstance(prompt, asyncio.Task):
            prompt = await prompt
        output = await self._pooled(request.request_id, prompt, params)
        data = output.outputs.data.float().cpu().contiguous()
        width = data.shape[-1] if data.ndim > 1 else 1  # one number per token has no dimension
        vector = memoryview(data.flatten().numpy())
        tokens = len(output.prompt_token_ids)
        return EmbeddingResult(vector, tokens, width if request.task in TOKEN_TASKS else None)

    def _check_dimensions(self, dimensions: int | None) -> None:
        """vLLM would refuse too, but with the path of the weights."""
        trained = getattr(self._engine.model_config.hf_config, "matryoshka_dimensions", None)
        if dimensions is not None and trained and dimensions not in trained:
            listed = ", ".join(map(str, trained))
            raise ValueError(f"dimensions: {dimensions} is not one of the model's, {listed}")

    async def score(self, request: ScorePairRequest) -> ScoreResult:
        """Return the score of the model's single label, after the activation that the model
        configures.
        """
        if "score" not in self._tasks:
            return await super().score(request)
        from vllm.pooling_params import PoolingParams

        params = PoolingParams(task="classify")
        if request.token_type_ids is not None and self._uses_token_types():
            first = conversion.second_type_from(request.token_type_ids)
            params.extra_kwargs = {
                "compressed_token_type_ids": first
            }  # as vLLM's own endpoint does
        conversion.check_token_ids(request.prompt_token_ids)
        prompt = conversion.prompt(None, request.prompt_token_ids, request.cache_salt)
        output = await self._pooled(request.request_id, prompt, params)
        return ScoreResult(output.outputs.data.item(), len(output.prompt_token_ids))

    def cancel(self, request_id: str) -> None:
        """Abort a request of the step loop. A request of AsyncLLM is aborted when its task ends."""
        for cache in self._media_caches():
            cache.cancel(request_id)
        if self._steps is not None:
            self._steps.cancel(request_id)

    def unload(self) -> None:
        """Stop the engine's process."""
        # If the reference were kept, vLLM's finalizer would run at interpreter exit and fail.
        engine, self._engine = self._engine, None
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.close()
        if engine is not None:
            self._adapters.close()
            self._grammars.close()
            self._sleep.close()
            for cache in self._media_caches():
                cache.close()
            engine.shutdown()
            self._failures.close()

    @property
    def is_sleeping(self) -> bool:
        return self._sleep.is_sleeping

    async def sleep(self, level: int) -> int:
        """Free GPU memory: all of the KV cache with its prefixes, and the weights."""
        self._ready_for_replies()
        return await self._sleep.sleep(level)

    async def wake(self) -> None:
        """Take the memory again; after level 2, also read the weights again."""
        self._ready_for_replies()
        await self._sleep.wake()

    def failure(self) -> str | None:
        """A dead engine process shows up immediately."""
        steps, engine = self._steps, self._engine
        if engine is None:
            return "the model is unloaded"
        if engine.errored:
            return self._failures.describe(conversion.ENGINE_DIED)
        return None if steps is None else steps.failure

    def stats(self) -> EngineStats:
        """Count the engine's requests."""
        steps, engine = self._steps, self._engine
        if engine is None:
            return EngineStats()
        if steps is None:
            return EngineStats(running=engine.output_processor.get_num_unfinished_requests())
        return steps.stats()

    def samples(self) -> Iterable[Sample]:
        """Capabilities of this vLLM, and statistics of the cache, queue, LoRA and steps; the
        latter need the step loop.
        """
        steps = self._steps
        for each in capabilities.CAPABILITIES:
            yield CAPABILITY, {"capability": each.name}, float(self._vllm.has(each))
        yield from () if steps is None else steps.samples()
        if self._media is not None:
            yield from self._media.samples()
        if self._audio is not None:
            yield from self._audio.cache.samples()

    def _media_caches(self) -> Iterator[MediaCache]:
        if self._media is not None:
            yield from self._media.caches
        if self._audio is not None:
            yield self._audio.cache

    def _prompt_audio(self, model: ModelSpec) -> PromptAudio | None:
        """None if the model transcribes no audio. Blocks until processes are ready.

        Raises ValueError or RuntimeError for a model that cannot serve.
        """
        if not audio.is_transcriber(self._engine):
            return None
        if not self._vllm.has(capabilities.AUDIO):
            raise ValueError(f"audio is refused: {self._vllm.missing[capabilities.AUDIO.name]}")
        return audio.start(self._engine, model.parameters)

    def _prompt_media(self, model: ModelSpec) -> PromptMedia | None:
        """None if the model, or this vLLM, takes no media in prompts. Blocks until processes are
        ready.
        """
        self._media_limitations: list[str] = []
        if not self._vllm.has(capabilities.IMAGES):
            return None
        taken = [each for each in (IMAGE, AUDIO) if max_items(self._engine, each)]
        if AUDIO in taken and not (self._audio is None and self._vllm.has(capabilities.AUDIO)):
            taken.remove(AUDIO)
        media, failures = prompt_media.start(self._engine, taken, model.parameters)
        for modality, reason in failures.items():
            refused = "images are refused" if modality == IMAGE else "audio is refused"
            logger.warning("model %s: %s: %s", model.name, refused, reason)
            self._media_limitations.append(f"{refused}: {reason}")
        return media

    def _step_loop(self, model: ModelSpec) -> StepLoop | None:
        # Pooling and vLLM's own statistics need AsyncLLM's output handler.
        wanted = model.parameters.get("step_loop", "true") != "false"
        wanted = wanted and self._vllm.has(capabilities.STEP_LOOP)
        if not wanted or self._pooling or self._engine.log_stats:
            return None
        return StepLoop(self._engine, self._grammars, model=model.name)

    def _check_priority(self, priority: int) -> None:
        if priority and self._engine.vllm_config.scheduler_config.policy != "priority":
            raise ValueError(
                "priority: not supported, this model schedules first come, first served"
            )

    def _uses_token_types(self) -> bool:
        """Other models fail on token types, and the engine's process with them."""
        types: int = getattr(self._engine.model_config.hf_config, "type_vocab_size", 0)
        return types > 1

    async def _generate(
        self,
        request: GenerationRequest,
        prompt: Any,
        params: Any,
        sink: DeltaSink,
        options: dict[str, Any],
    ) -> None:
        with (
            self._unread_returned(request, ValueError, asyncio.CancelledError),
            conversion.translate_errors(params),
        ):
            if isinstance(prompt, asyncio.Task):
                prompt = await prompt
            params = await self._prepare(params, options)
        if params.extra_args and kv_transfer.take_late(params) is not None:
            self._return_unread(request)
        with self._unread_returned(request, ValueError), conversion.translate_errors(params):
            outputs = self._engine.generate(prompt, params, request.request_id, **options)
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    delta = conversion.delta(output)
                    counts = delta.counts
                    if counts is None and sink.counts_prompt:
                        sink.count_prompt(counts := conversion.prompt_counts(output))
                    if counts is not None and (request.images or request.audio_files):
                        counts.image_tokens = prompt_media.media_tokens(prompt, IMAGE)
                        counts.audio_tokens = prompt_media.media_tokens(prompt, AUDIO)
                    sink.send(delta)

    async def _prepare(self, params: Any, options: dict[str, Any]) -> Any:
        if isinstance(loading := options.get("lora_request"), asyncio.Task):
            options["lora_request"] = await asyncio.shield(loading)
        if params.structured_outputs is not None:
            params = await self._grammars.prepare(params)
        if params.bad_words:
            tokenizer = self._engine.input_processor.tokenizer
            await asyncio.to_thread(params.update_from_tokenizer, tokenizer)
            conversion.check_bad_words(params)
            params.bad_words = []  # done: vLLM would do it again, on the event loop
        return params

    @contextlib.contextmanager
    def _unread_returned(
        self, request: GenerationRequest, *when: type[BaseException]
    ) -> Iterator[None]:
        """For a request that AsyncLLM refuses, or that ends before AsyncLLM has it."""
        try:
            yield
        except when:
            if request.kv_transfer is not None:
                self._return_unread(request)
            raise

    async def _pooled(self, request_id: str, prompt: Any, params: Any) -> Any:
        with conversion.translate_errors():
            outputs = self._engine.encode(prompt, params, request_id)
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    return output
        raise EngineError("the engine returned no pooled output")

    async def _warm_up_pooling(self, token_ids: list[int]) -> None:
        request_id = f"warm-up-{next(self._warm_ups)}"
        task: PoolingTask
        for task in ("embed", "classify"):
            if task in self._tasks:
                request = EmbedRequest(request_id=request_id, prompt_token_ids=token_ids, task=task)
                await self.embed(request)


class _WarmUpSink:
    """Waits for the end of the output."""

    cancelled = False

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def send(self, delta: CompletionDelta) -> None:
        """Only the last delta matters."""
        if delta.finish_reason is not None and not self.ended.done():
            self.ended.set_result(None)

    def send_text(self, text: str, token_ids: Sequence[int]) -> None:
        """Plain text never ends the output."""

    def text_stream(self, step: object, tokenizer: object, logprobs: int = 0) -> None:
        """No fast path: every delta comes to `send`."""

    def count_prompt(self, counts: TokenCounts) -> None:
        """Has no effect: `counts_prompt` is False."""

    @property
    def counts_prompt(self) -> bool:
        return False

    @property
    def logprob_arrays(self) -> bool:
        return False

    def fail(self, error: Exception) -> None:
        """Raise the engine's error in `warm_up`, which fails the load."""
        if not self.ended.done():
            self.ended.set_exception(error)
