"""The load of the whole server in a few numbers, for load balancers and routers.

They read one value per server: vLLM's own metrics have one per model, and do not count the requests
that wait in the gateway's queues.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from openai_frontend.metrics import catalog
from openai_frontend.metrics.vllm import VLLMModel

FORMATS = ("text", "json")  # of the header `endpoint-load-metrics`, in lower case


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLoad:
    """Sums over all models."""

    running: int  # requests that the models process
    waiting: int  # in the gateway's queues, and in those of in-process engines
    kv_cache_usage: float  # of the fullest engine; 1 means full

    @classmethod
    def of(
        cls, *, running: int, queued: int, engines: Iterable[Mapping[str, float]]
    ) -> "ServerLoad":
        """`running` and `queued` are the gateway's counts, `engines` the gauges of each engine. A
        request that waits in an engine is running for the gateway.
        """
        gauges = list(engines)
        waiting = min(running, int(sum(each.get("waiting", 0) for each in gauges)))
        usages = [each.get("vllm:kv_cache_usage_perc", 0.0) for each in gauges]
        return cls(
            running=running - waiting,
            waiting=queued + waiting,
            kv_cache_usage=max(usages, default=0.0),
        )

    def header(self, format: str) -> str | None:
        """The value of ORCA's response header `endpoint-load-metrics`, with vLLM's names; None for
        a format other than `text` and `json`.
        """
        named: dict[str, float] = {
            "kv_cache_usage_perc": float(self.kv_cache_usage),
            "num_requests_waiting": float(self.waiting),
            "num_requests_running": float(self.running),
        }
        if format.lower() == "json":
            return f"JSON {json.dumps({'named_metrics': named})}"
        if format.lower() == "text":
            values = (f"named_metrics.{name}={value}" for name, value in named.items())
            return f"TEXT {', '.join(values)}"
        return None


def families(load: ServerLoad, models: Iterable[VLLMModel]) -> Iterator[Metric]:
    """Gauges without labels. Those of the KV cache's size describe the largest cache, and are left
    out if no engine has one.
    """
    for spec, value in (
        (catalog.LOAD_RUNNING, load.running),
        (catalog.LOAD_WAITING, load.waiting),
        (catalog.LOAD_KV_CACHE_USAGE, load.kv_cache_usage),
    ):
        yield GaugeMetricFamily(spec.name, spec.help, value=value)
    if caches := [each for model in models for each in _caches(model)]:
        blocks, block_size = max(caches)
        yield GaugeMetricFamily(
            catalog.LOAD_KV_CACHE_BLOCKS.name, catalog.LOAD_KV_CACHE_BLOCKS.help, value=blocks
        )
        yield GaugeMetricFamily(
            catalog.LOAD_KV_CACHE_BLOCK_SIZE.name,
            catalog.LOAD_KV_CACHE_BLOCK_SIZE.help,
            value=block_size,
        )


def _caches(model: VLLMModel) -> Iterator[tuple[int, int]]:
    """Blocks, and tokens per block. Both are unknown until the engine has started."""
    for name, labels, _ in model.samples:
        if name == "vllm:cache_config_info":
            sizes = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
            if all(map(str.isdigit, sizes)):
                yield int(sizes[0]), int(sizes[1])
