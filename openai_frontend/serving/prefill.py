"""POST /internal/prefill: computes a prompt, and keeps its KV cache for a decode server."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from time import monotonic
from typing import Protocol

from openai_frontend.errors import InferenceFailed, InvalidRequest
from openai_frontend.generation import (
    REMOTE_DECODE,
    Adapter,
    CompletionDelta,
    GenerationRequest,
    SamplingParams,
)
from openai_frontend.models.lora.models import SEPARATOR
from openai_frontend.models.remote_prefill import prompt_digest
from openai_frontend.request_context.context import current_request
from openai_frontend.serving.admission.model import Describes
from openai_frontend.serving.admission.permit import Admission
from openai_frontend.serving.output.completion_job import new_id
from schemas.transfer import PrefillRequest, PrefillResponse


def model_name(request: PrefillRequest) -> str:
    """The name under which a client would use the model and its adapter."""
    if request.adapter is None:
        return request.model
    return f"{request.model}{SEPARATOR}{request.adapter}"


class PrefillModel(Describes, Protocol):
    """A model whose KV caches another engine reads. The decode server has charged the request, and
    salted its cache.
    """

    @property
    def adapter(self) -> Adapter | None: ...
    def generate_salted(
        self, request: GenerationRequest
    ) -> AsyncGenerator[list[CompletionDelta], None]: ...


class Prefill:
    """Prompts of decode servers, independent of HTTP."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    async def create(self, request: PrefillRequest, model: PrefillModel) -> PrefillResponse:
        """Run the prompt for one token, which is dropped."""
        begun_s = monotonic()
        facts = model.facts.kv_transfer
        if not facts or not model.supports("kv_transfer"):
            message = f"The model '{model.name}' keeps no KV caches for other engines."
            raise InvalidRequest(message, param="model", code="unsupported_model")
        generation = GenerationRequest(
            request_id=new_id("prefill"),
            prompt_token_ids=request.prompt_token_ids,
            sampling_params=SamplingParams(max_tokens=1, temperature=0.0),
            priority=request.priority if model.supports("priority") else 0,
            cache_salt=request.cache_salt,
            kv_transfer=REMOTE_DECODE,
        )
        params = None
        priority = request.priority
        async with (
            self._admission.wait(current_request(), model, priority=priority),
            aclosing(model.generate_salted(generation)) as bursts,
        ):
            async for deltas in bursts:
                for delta in deltas:
                    params = delta.counts and delta.counts.kv_transfer_params
        prefill_s = monotonic() - begun_s
        if not params:
            raise InferenceFailed("the engine reported no KV transfer")
        return PrefillResponse(
            digest=prompt_digest(
                generation.prompt_token_ids or (),
                model=model.model_name,
                adapter=None if model.adapter is None else model.adapter.name,
                cache_salt=generation.cache_salt,
            ),
            lease_s=facts.lease_s,
            prefill_s=prefill_s,
            kv_transfer_params=dict(params),
        )
