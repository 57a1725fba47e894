"""Embeddings: from a request to vectors, from vectors to the bytes of the response."""

from collections.abc import Sequence
from dataclasses import replace

from openai_frontend.errors import GatewayError, InferenceFailed, InvalidRequest
from openai_frontend.generation import EmbeddingResult, EmbedRequest
from openai_frontend.request_context.context import current_request
from openai_frontend.serving.admission.model import Describes, ServingModel
from openai_frontend.serving.admission.permit import Admission, Permit
from openai_frontend.serving.output.completion_job import new_id
from openai_frontend.serving.pooling import (
    FLOAT_BYTES,
    Pooler,
    at_once,
    check_dimensions,
    embedding_requests,
    no_dimensions,
    pooled_list,
    render,
    rendering_cost_us,
)
from openai_frontend.serving.pooling_inputs import PoolingInputs
from openai_frontend.serving.request.field_policy import NEUTRAL_IN_EMBEDDINGS, FieldPolicy
from schemas.embeddings import EmbeddingRequest


class Embeddings:
    """POST /v1/embeddings, independent of HTTP."""

    def __init__(self, inputs: PoolingInputs, policy: FieldPolicy, admission: Admission) -> None:
        self._inputs = inputs
        self._policy = policy
        self._admission = admission
        self._pooler = Pooler(admission)

    async def create(self, request: EmbeddingRequest, model: ServingModel) -> bytes:
        """The response as JSON. Raises for what this model or server does not support."""
        self._admission.check(current_request(), model)
        self._policy.check_extra(request, NEUTRAL_IN_EMBEDDINGS)
        _check_embeds(model)
        dimensions = check_dimensions(request.dimensions, model)
        prompts = await self._inputs.read(request, model)
        requests = embedding_requests(new_id("embd"), prompts, dimensions=dimensions)
        as_base64 = request.encoding_format == "base64"
        pooled = await self._pooler.run(
            requests,
            prompts,
            model,
            render=at_once(
                lambda at, vector: render(at, vector, as_base64=as_base64),
                lambda vector: rendering_cost_us(vector, as_base64=as_base64),
            ),
            pool=lambda requests, permit: _vectors(requests, model, permit),
        )
        return pooled_list(pooled.rows, {"model": model.name, "usage": pooled.usage})


async def _vectors(
    requests: Sequence[EmbedRequest], model: Describes, permit: Permit
) -> Sequence[EmbeddingResult]:
    """A model whose length is not known may refuse `dimensions` although it is that length."""
    try:
        return await permit.embed(requests)
    except (InvalidRequest, InferenceFailed) as refused:
        dimensions = requests[0].dimensions
        if dimensions is None or model.facts.dimensions is not None:
            raise
        try:
            results = await permit.embed([replace(each, dimensions=None) for each in requests])
        except GatewayError:
            raise refused from None  # for another reason
    if any(result.embedding.nbytes != dimensions * FLOAT_BYTES for result in results):
        raise no_dimensions()
    return results


def _check_embeds(model: Describes) -> None:
    if "embed" not in model.tasks:
        hint = " Use /v1/pooling." if "token_embed" in model.tasks else ""
        message = f"The model '{model.name}' does not create embeddings.{hint}"
        raise InvalidRequest(message, param="model", code="unsupported_model")
