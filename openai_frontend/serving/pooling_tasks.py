"""All tasks of pooling models, in vLLM's format: one vector for each input, or for each token."""

import time
from collections.abc import Mapping

import orjson
import pybase64

from openai_frontend.errors import InvalidRequest
from openai_frontend.pooling import EmbeddingResult, PoolingTask
from openai_frontend.request_context.context import current_request
from openai_frontend.serving import token_vectors
from openai_frontend.serving.admission.model import Describes, ServingModel
from openai_frontend.serving.admission.permit import Admission
from openai_frontend.serving.output.completion_job import new_id
from openai_frontend.serving.pooling import (
    Pooler,
    TimeSlicer,
    check_dimensions,
    embedding_requests,
    finite_numbers,
    pooled_list,
    rendering_cost_us,
)
from openai_frontend.serving.pooling_inputs import PoolingInputs
from openai_frontend.serving.request.field_policy import NEUTRAL_IN_POOLING_TASKS, FieldPolicy
from openai_frontend.serving.token_vectors import TokenVectors
from schemas.pooling import PoolingRequest

# The first that a model has is its default
_ORDER: tuple[PoolingTask, ...] = ("embed", "classify", "token_embed", "token_classify")
_OPTIONS: Mapping[str, frozenset[PoolingTask]] = {
    "dimensions": frozenset({"embed"}),
    "output_types": frozenset(),
    "use_activation": frozenset({"classify", "token_embed", "token_classify"}),
}


class PoolingTasks:
    """POST /v1/pooling, independent of HTTP."""

    def __init__(self, inputs: PoolingInputs, policy: FieldPolicy, admission: Admission) -> None:
        self._inputs = inputs
        self._policy = policy
        self._admission = admission
        self._pooler = Pooler(admission)

    async def create(self, request: PoolingRequest, model: ServingModel) -> bytes:
        """The response as JSON. Raises for what this model or server does not support."""
        self._admission.check(current_request(), model)
        self._policy.check_extra(request, NEUTRAL_IN_POOLING_TASKS)
        task = _task(request, model)
        dimensions = check_dimensions(request.dimensions, model)
        prompts = await self._inputs.read(request, model)
        if task == "token_embed":
            token_vectors.check_prompts(prompts, model)
        id, as_base64 = new_id("pool"), request.encoding_format == "base64"
        of_tokens = TokenVectors(as_base64=as_base64)

        async def render(at: int, result: EmbeddingResult, slicer: TimeSlicer) -> bytes:
            if result.width is not None:
                data = await of_tokens.render(result, result.width, slicer)
            else:
                await slicer.take(rendering_cost_us(result.embedding, as_base64=as_base64))
                data = _vector(result.embedding, as_base64=as_base64)
            return b'{"index":%d,"object":"pooling","data":%b}' % (at, data)

        requests = embedding_requests(
            id, prompts, task=task, dimensions=dimensions, use_activation=request.use_activation
        )
        pooled = await self._pooler.run(requests, prompts, model, render=render)
        created = int(time.time())
        fields = {"id": id, "created": created, "model": model.name, "usage": pooled.usage}
        return pooled_list(pooled.rows, fields)


def _task(request: PoolingRequest, model: Describes) -> PoolingTask:
    """The requested task, or the model's first. Raises InvalidRequest for others."""
    able = [each for each in _ORDER if each in model.tasks]
    if not able:
        message = f"The model '{model.name}' is not a pooling model."
        raise InvalidRequest(message, param="model", code="unsupported_model")
    task = request.task or able[0]
    if task not in able:
        message = (
            f"Unsupported value: 'task' does not support '{task}' with this model. Supported "
            f"values are: {', '.join(able)}."
        )
        raise InvalidRequest(message, param="task", code="unsupported_value")
    for name, tasks in _OPTIONS.items():
        if getattr(request, name) is not None and task not in tasks:
            message = f"Unsupported parameter: '{name}' is not supported with the task '{task}'."
            raise InvalidRequest(message, param=name, code="unsupported_parameter")
    return task


def _vector(vector: memoryview, *, as_base64: bool) -> bytes:
    numbers = finite_numbers(vector)
    if as_base64:
        return b'"%b"' % pybase64.b64encode(vector)
    return orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY)
