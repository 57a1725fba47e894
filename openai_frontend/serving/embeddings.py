"""Embeddings: from a request to vectors, from vectors to the bytes of the response."""

from collections.abc import Sequence
from dataclasses import replace

from openai_frontend.errors import GatewayError, InferenceFailed, InvalidRequest, MalformedOutput
from openai_frontend.pooling import EmbeddingResult, EmbedRequest
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.request_context.context import current_request
from openai_frontend.serving import token_vectors
from openai_frontend.serving.admission.model import Describes, ServingModel
from openai_frontend.serving.admission.permit import Admission, Permit
from openai_frontend.serving.output.completion_job import new_id
from openai_frontend.serving.pooling import (
    FLOAT_BYTES,
    Pooled,
    Pooler,
    TimeSlicer,
    at_once,
    check_dimensions,
    embedding_requests,
    no_dimensions,
    pooled_list,
    render,
    rendering_cost_us,
)
from openai_frontend.serving.pooling_inputs import PoolingInputs
from openai_frontend.serving.request.field_names import renamed
from openai_frontend.serving.request.field_policy import (
    NEUTRAL_IN_EMBEDDINGS,
    NEUTRAL_IN_TEXTS_EMBED,
    FieldPolicy,
)
from openai_frontend.serving.sparse_vectors import Entries, as_lists, as_pairs, sparse_rows
from openai_frontend.serving.token_vectors import TokenVectors
from schemas.embeddings import EmbeddingRequest, TextsEmbedRequest


class Embeddings:
    """POST /v1/embeddings and /embed_sparse, independent of HTTP."""

    def __init__(self, inputs: PoolingInputs, policy: FieldPolicy, admission: Admission) -> None:
        self._inputs = inputs
        self._policy = policy
        self._admission = admission
        self._pooler = Pooler(admission)

    async def create(self, request: EmbeddingRequest, model: ServingModel) -> bytes:
        """The response as JSON. Raises for what this model or server does not support."""
        self._admission.check(current_request(), model)
        self._policy.check_extra(request, NEUTRAL_IN_EMBEDDINGS)
        types = frozenset(request.output_types or ("dense",))
        dimensions = check_dimensions(request.dimensions, model)
        prompts = await self._inputs.read(request, model)
        if "sparse" not in types:
            dense = await self._dense(request, dimensions, prompts, model)
            return pooled_list(dense.rows, {"model": model.name, "usage": dense.usage})
        sparse = await sparse_rows(new_id("embd"), prompts, model, self._pooler, _sparse_member)
        rows = [b'{"object":"embedding","index":%d,%b}' % each for each in enumerate(sparse.rows)]
        if "dense" in types:
            dense = await self._dense(request, dimensions, prompts, model)
            rows = [
                b"%b,%b}" % (row[:-1], member)
                for row, member in zip(dense.rows, sparse.rows, strict=True)
            ]
        return pooled_list(rows, {"model": model.name, "usage": sparse.usage})

    async def create_for_texts(self, request: TextsEmbedRequest, model: ServingModel) -> bytes:
        """Sparse vectors in text-embeddings-inference's format, as JSON."""
        self._admission.check(current_request(), model)
        self._policy.check_extra(request, NEUTRAL_IN_TEXTS_EMBED)
        direction = (request.truncation_direction or "right").lower()
        inputs = EmbeddingRequest(
            input=request.inputs,
            truncate_prompt_tokens=-1 if request.truncate and model.prompts is not None else None,
            truncation_side="left" if direction == "left" else "right",
        )
        try:
            prompts = await self._inputs.read(inputs, model)
            sparse = await sparse_rows(new_id("embd"), prompts, model, self._pooler, as_pairs)
        except InvalidRequest as error:
            raise renamed(error, {"input": "inputs"}) from error
        return b"[%b]" % b",".join(sparse.rows)

    async def _dense(
        self,
        request: EmbeddingRequest,
        dimensions: int | None,
        prompts: Sequence[Prompt],
        model: ServingModel,
    ) -> Pooled[bytes]:
        if "embed" not in model.tasks:
            return await self._of_tokens(dimensions, prompts, model)
        as_base64 = request.encoding_format == "base64"
        return await self._pooler.run(
            embedding_requests(new_id("embd"), prompts, dimensions=dimensions),
            prompts,
            model,
            render=at_once(
                lambda at, vector: render(at, vector, as_base64=as_base64),
                lambda vector: rendering_cost_us(vector, as_base64=as_base64),
            ),
            pool=lambda requests, permit: _vectors(requests, model, permit),
        )

    async def _of_tokens(
        self, dimensions: int | None, prompts: Sequence[Prompt], model: ServingModel
    ) -> Pooled[bytes]:
        """A list of vectors for each input, from a model that has only these. Also numbers if the
        request asks for base64, which OpenAI's client does by default: it decodes a text to one
        vector, and passes lists on.
        """
        if "token_embed" not in model.tasks:
            message = f"The model '{model.name}' does not create embeddings."
            raise InvalidRequest(message, param="model", code="unsupported_model")
        if dimensions is not None:
            raise no_dimensions()
        token_vectors.check_prompts(prompts, model)
        vectors = TokenVectors(as_base64=False)

        async def row(at: int, result: EmbeddingResult, slicer: TimeSlicer) -> bytes:
            if result.width is None:
                raise MalformedOutput("The model returned no vector for each token of an input.")
            numbers = await vectors.render(result, result.width, slicer)
            return b'{"object":"embedding","index":%d,"embedding":%b}' % (at, numbers)

        requests = embedding_requests(new_id("embd"), prompts, task="token_embed")
        return await self._pooler.run(requests, prompts, model, render=row)


def _sparse_member(at: int, result: EmbeddingResult, entries: Entries) -> bytes:
    return b'"sparse_embedding":%b' % as_lists(entries)


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
