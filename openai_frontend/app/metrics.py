"""The metrics of the gateway, its models and their engines."""

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric

from openai_frontend.lifespan import AppState
from openai_frontend.metrics import load, vllm
from openai_frontend.metrics.load import ServerLoad


def families(state: AppState) -> Iterable[Metric]:
    """The gateway's metrics, and vLLM's metrics for models of the vLLM engine."""
    own, models = state.metrics.registry, state.registry.vllm_models()
    return [
        *own.collect(),
        *load.families(server_load(state), models),
        *vllm.families(own, models),
    ]


def server_load(state: AppState) -> ServerLoad:
    """The requests and engines of now."""
    return ServerLoad.of(
        running=state.limiter.running,
        queued=state.limiter.queued,
        engines=state.registry.engine_gauges(),
    )
