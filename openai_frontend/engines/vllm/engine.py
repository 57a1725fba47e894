"""A model that vLLM serves. `<version>/model.json` holds any of vLLM's engine arguments, as in
NVIDIA's backend.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any

from openai_frontend.engines.engine import (
    DeltaSink,
    Engine,
    EngineError,
    EngineStats,
    ModelFacts,
    ModelFolder,
)
from openai_frontend.engines.vllm import arguments, conversion
from openai_frontend.engines.vllm.steps import TESTED_VERSIONS, StepLoop
from openai_frontend.generation import (
    CompletionDelta,
    EmbeddingRequest,
    EmbeddingResult,
    GenerationRequest,
    SamplingParams,
)

logger = logging.getLogger(__name__)

# On CPUs with AMX a bfloat16 engine dies of SIGILL when its first prompt has 3 tokens or fewer: AMX
# is initialised by a longer batch only. So a longer one goes first, whatever the dtype.
WARM_UP_TOKENS = 8
WARM_UP_TIMEOUT_S = 120


class VLLMEngine(Engine):
    """Continuous batching by vLLM. `parameters: step_loop: "false"` in config.pbtxt takes
    AsyncLLM.generate.
    """

    def load(self, model: ModelFolder) -> ModelFacts:
        """Start the engine and its process. Raises ValueError where model.json is wrong."""
        arguments.set_environment()
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        engine_arguments = arguments.engine_arguments(model)
        with arguments.sigint_blocked():
            self._engine: Any = AsyncLLM.from_engine_args(
                engine_arguments, usage_context=UsageContext.OPENAI_API_SERVER
            )
        config = self._engine.model_config
        self._defaults = config.get_diff_sampling_param()
        self._pooling = config.runner_type == "pooling"
        self._steps = self._step_loop(model)
        return ModelFacts(
            max_model_len=config.max_model_len,
            tokenizer=str(config.tokenizer),
            tasks=("embed",) if self._pooling else ("generate",),
            owned_by="vllm",
            vocab_size=config.get_vocab_size(),
            description=model.parameters.get("description"),
        )

    async def warm_up(self) -> None:
        """Run a prompt of more than 3 tokens through the engine."""
        token_ids = [1] * min(WARM_UP_TOKENS, self._engine.model_config.max_model_len - 1)
        async with asyncio.timeout(WARM_UP_TIMEOUT_S):
            if self._pooling:
                await self.embed(EmbeddingRequest(request_id="warm-up", prompt_token_ids=token_ids))
                return
            sink = _WarmUpSink()
            request = GenerationRequest(
                request_id="warm-up",
                prompt_token_ids=token_ids,
                sampling_params=SamplingParams(max_tokens=1, temperature=0.0),
            )
            if (answer := self.generate(request, sink)) is not None:
                await answer
            await sink.ended

    def generate(
        self, request: GenerationRequest, sink: DeltaSink
    ) -> Coroutine[Any, Any, None] | None:
        """Answer a prompt: in the step loop, or by a task over AsyncLLM.generate."""
        with conversion.translated():
            params = conversion.sampling_params(
                request.sampling_params, self._defaults, stream=request.stream
            )
        prompt = conversion.prompt(request.prompt, request.prompt_token_ids)
        if self._steps is None:
            return self._generate(request.request_id, prompt, params, sink)
        self._steps.add(request.request_id, prompt, params, sink)
        return None

    async def embed(self, request: EmbeddingRequest) -> EmbeddingResult:
        """Return the pooled vector, float32."""
        if not self._pooling:
            raise EngineError("the model makes no embeddings", code=5)
        from vllm.pooling_params import PoolingParams

        params = PoolingParams(task="embed", dimensions=request.dimensions)
        prompt = conversion.prompt(request.prompt, request.prompt_token_ids)
        with conversion.translated():
            async for output in self._engine.encode(prompt, params, request.request_id):
                vector = output.outputs.data.float().cpu().numpy()
                return EmbeddingResult(memoryview(vector), len(output.prompt_token_ids))
        raise EngineError("the engine gave no vector")

    def cancel(self, request_id: str) -> None:
        """Abort a request of the step loop; the end of its task aborts one of AsyncLLM's."""
        if self._steps is not None:
            self._steps.cancel(request_id)

    def unload(self) -> None:
        """End the engine's process."""
        # Kept, vLLM's finalizer would run at the interpreter's exit and fail.
        engine, self._engine = self._engine, None
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.close()
        if engine is not None:
            engine.shutdown()

    def stats(self) -> EngineStats:
        """Count the requests that the engine holds; a dead engine process shows at once."""
        steps, engine = self._steps, self._engine
        if engine is None:
            return EngineStats(failure="the model is unloaded")
        failure = conversion.ENGINE_DIED if engine.errored else None
        if steps is None:
            return EngineStats(running=engine.get_num_unfinished_requests(), failure=failure)
        return EngineStats(running=steps.running, failure=failure or steps.failure)

    def _step_loop(self, model: ModelFolder) -> StepLoop | None:
        import vllm

        version = vllm.__version__.partition("+")[0]
        if version not in TESTED_VERSIONS:
            logger.warning(
                "model %s: the step loop was not tested with vLLM %s (it was with %s): "
                "generating through AsyncLLM, which costs more CPU per token",
                model.name,
                version,
                ", ".join(TESTED_VERSIONS),
            )
            return None
        # Pooling and vLLM's own statistics need AsyncLLM's output handler.
        wanted = model.parameters.get("step_loop", "true") != "false"
        if not wanted or self._pooling or self._engine.log_stats:
            return None
        return StepLoop(self._engine)

    async def _generate(self, request_id: str, prompt: Any, params: Any, sink: DeltaSink) -> None:
        with conversion.translated():
            outputs = self._engine.generate(prompt, params, request_id)
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    sink.send(conversion.delta(output))


class _WarmUpSink:
    """Waits for the end of the answer."""

    cancelled = False

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def send(self, delta: CompletionDelta) -> None:
        """Take a delta; only the last one matters."""
        if delta.finish_reason is not None and not self.ended.done():
            self.ended.set_result(None)

    def fail(self, error: Exception) -> None:
        """End with the engine's error, which fails the load."""
        if not self.ended.done():
            self.ended.set_exception(error)
