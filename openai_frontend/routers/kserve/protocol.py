"""All routes of KServe's protocol. /v2/rerank is none of them: it is Cohere's."""

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter

from openai_frontend.models.management import ModelManagement
from openai_frontend.routers.kserve.inference import inference_router
from openai_frontend.routers.kserve.lacking import lacking_router, logging_router
from openai_frontend.routers.kserve.models import (
    models_router,
    readiness_router,
    statistics_router,
)
from openai_frontend.routers.kserve.repository import control_router, index_router
from openai_frontend.routers.kserve.server import health_router, server_router
from openai_frontend.routers.streamed_response import StreamLimits
from openai_frontend.serving.admission.concurrency_limit import ConcurrencyLimiter
from openai_frontend.serving.kserve.at_work import AtWork, LimitsOf, Use
from openai_frontend.serving.kserve.core import Core
from openai_frontend.serving.kserve.generation import GenerateRequests
from openai_frontend.serving.kserve.inference import InferRequests
from openai_frontend.serving.kserve.repository import Repository
from openai_frontend.serving.request.field_policy import FieldPolicy


def kserve_router(  # noqa: PLR0913  each is a part of the server that the protocol shows
    core: Core,
    *,
    policy: FieldPolicy,
    limiter: ConcurrencyLimiter,
    management: ModelManagement,
    use: Use,
    limits_of: LimitsOf,
    is_ready: Callable[[], bool],
    log_settings: Mapping[str, Any],
    streams: StreamLimits,
) -> APIRouter:
    """`log_settings`: the core's log in the words of Triton's logging extension."""
    repository = Repository(management)
    at_work = AtWork(core, use, limiter, limits_of)
    infer = InferRequests(core, at_work, policy)
    router = APIRouter()
    for part in (
        health_router(core, is_ready),
        server_router(core),
        statistics_router(core),  # its /v2/models/stats goes before a model of that name
        models_router(core),
        readiness_router(core),
        inference_router(core, infer, GenerateRequests(core, at_work), streams),
        index_router(repository),
        control_router(repository),
        logging_router(log_settings),
        lacking_router(),
    ):
        router.include_router(part)
    return router
