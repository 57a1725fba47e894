"""Classification: the scores of a model's labels for each input."""

import time
from collections.abc import Sequence

import orjson

from openai_frontend.errors import InvalidRequest
from openai_frontend.request_context.context import current_request
from openai_frontend.serving.admission.model import Describes, ServingModel
from openai_frontend.serving.admission.permit import Admission
from openai_frontend.serving.output.completion_job import new_id
from openai_frontend.serving.pooling import (
    Pooler,
    at_once,
    class_scores,
    embedding_requests,
    pooled_list,
    rendering_cost_us,
)
from openai_frontend.serving.pooling_inputs import PoolingInputs
from openai_frontend.serving.request.field_policy import NEUTRAL_IN_CLASSIFICATION, FieldPolicy
from schemas.classification import ClassificationRequest


class Classification:
    """POST /v1/classify, independent of HTTP."""

    def __init__(self, inputs: PoolingInputs, policy: FieldPolicy, admission: Admission) -> None:
        self._inputs = inputs
        self._policy = policy
        self._admission = admission
        self._pooler = Pooler(admission)

    async def create(self, request: ClassificationRequest, model: ServingModel) -> bytes:
        """The response as JSON. Raises for what this model or server does not support."""
        self._admission.check(current_request(), model)
        self._policy.check_extra(request, NEUTRAL_IN_CLASSIFICATION)
        labels = _labels(model)
        prompts = await self._inputs.read(request, model)
        id = new_id("classify")
        requests = embedding_requests(
            id, prompts, task="classify", use_activation=request.use_activation
        )
        pooled = await self._pooler.run(
            requests,
            prompts,
            model,
            render=at_once(
                lambda at, scores: _render(at, scores, labels),
                lambda scores: rendering_cost_us(scores, as_base64=False),
            ),
        )
        created = int(time.time())
        fields = {"id": id, "created": created, "model": model.name, "usage": pooled.usage}
        return pooled_list(pooled.rows, fields)


def _labels(model: Describes) -> Sequence[str]:
    """The labels of a classifier: its contract makes sure that it has some."""
    if "classify" not in model.tasks:
        message = f"The model '{model.name}' does not classify texts."
        raise InvalidRequest(message, param="model", code="unsupported_model")
    return model.facts.labels or ()


def _render(index: int, scores: memoryview, labels: Sequence[str]) -> bytes:
    """One element of the response's `data`, straight from tensor memory."""
    numbers = class_scores(index, scores, labels)
    label = orjson.dumps(labels[int(numbers.argmax())])
    encoded = orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY)
    return b'{"index":%d,"label":%b,"probs":%b,"num_classes":%d}' % (
        index,
        label,
        encoded,
        len(numbers),
    )
