"""KV caches that one engine computes and another reads, by vLLM's NixlConnector.

vLLM checks neither how old a transfer is nor whose (docs/decisions/0024-disaggregation.md): the
gateway does.
"""

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from copy import copy
from importlib.util import find_spec
from pathlib import Path
from time import monotonic_ns
from typing import Any

from openai_frontend.engines.engine import KVTransferFacts, Sample
from openai_frontend.errors import caught
from openai_frontend.generation import KV_TRANSFER_EXPIRES as _EXPIRES
from openai_frontend.generation import KV_TRANSFER_PARAMS as _PARAMS
from openai_frontend.generation import KVTransfer

logger = logging.getLogger(__name__)

CONNECTOR = "NixlConnector"
LEASE_S = 30  # vLLM's default of kv_lease_duration
_DEFAULTS = {"kv_load_failure_policy": "recompute"}  # vLLM's default fails the request
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HOST, _PORT = "VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT"


def config(given: Mapping[str, Any], path: Path, *, on_cpu: bool) -> dict[str, Any]:
    """`kv_transfer_config` with the gateway's defaults. Raises ValueError, naming `path`."""
    if given.get("kv_connector") != CONNECTOR:
        return dict(given)
    if find_spec("nixl") is None:
        raise ValueError(
            f"{path}: kv_transfer_config: {CONNECTOR} needs the package nixl; install it as in"
            " docs/disaggregation.md"
        )
    host = os.environ.get(_HOST, "localhost")
    _check_port(path, host, int(os.environ.get(_PORT, "5600")))
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
    if not on_cpu:
        return {**_DEFAULTS, **given}
    os.environ.setdefault("UCX_TLS", "tcp,self")
    if host in _LOOPBACK:
        os.environ.setdefault("UCX_NET_DEVICES", "lo")
    return {**_DEFAULTS, "kv_buffer_device": "cpu", **given}


def _check_port(path: Path, host: str, port: int) -> None:
    """vLLM would wait forever for a listener that cannot start."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise ValueError(
            f"{path}: kv_transfer_config: cannot listen on {host}:{port}: {error.strerror}; set"
            f" {_PORT} to a port that no other process uses. A gateway can have one model with"
            f" {CONNECTOR} loaded: unload it before you load another one, or the same one again"
        ) from None


def described(given: Mapping[str, Any], **cache: int) -> KVTransferFacts | None:
    """The facts of a `kv_transfer_config`; None without a connector that the gateway can use."""
    if given.get("kv_connector") != CONNECTOR:
        return None
    extra = given.get("kv_connector_extra_config") or {}
    return KVTransferFacts(
        role=given.get("kv_role") or "",
        recomputes=given.get("kv_load_failure_policy", "recompute") == "recompute",
        lease_s=extra.get("kv_lease_duration", LEASE_S),
        **cache,
    )


def facts(engine: Any) -> KVTransferFacts | None:
    """Transfer abilities of the loaded engine."""
    config, cache = engine.vllm_config.kv_transfer_config, engine.vllm_config.cache_config
    if config is None or not hasattr(engine, "notify_kv_transfer_request_rejected"):
        return None
    names = ("kv_connector", "kv_role", "kv_load_failure_policy", "kv_connector_extra_config")
    return described(
        {name: getattr(config, name, None) for name in names},
        block_size=cache.block_size,
        blocks=cache.num_gpu_blocks or 0,
    )


def attached(params: Any, transfer: KVTransfer) -> Any:
    """vLLM's SamplingParams with a transfer beside the request's own `extra_args`: a copy, because
    other requests may share them.
    """
    extra = {**(params.extra_args or {}), _PARAMS: dict(transfer.params)}
    own = copy(params)
    own.extra_args = extra | ({_EXPIRES: transfer.expires_ns} if transfer.expires_ns else {})
    return own


def take_late(params: Any) -> Mapping[str, Any] | None:
    """Take away a transfer that must no longer be read, and return it.

    Call it immediately before the request goes to the engine: a grammar or an adapter may have
    taken long.
    """
    expires_ns = params.extra_args.pop(_EXPIRES, 0)
    if not expires_ns or monotonic_ns() < expires_ns:
        return None
    late: Mapping[str, Any] = params.extra_args[_PARAMS]
    params.extra_args[_PARAMS] = {}  # so that it is reported as not read
    return late


def unread(params: Any) -> Mapping[str, Any] | None:
    """The transfer that a request would have read, had it gone to the engine."""
    found: Mapping[str, Any] | None = (params.extra_args or {}).get(_PARAMS)
    return found if found is not None and found.get("do_remote_prefill") else None


def has_transfer(params: Any) -> bool:
    return bool(params.extra_args) and _PARAMS in params.extra_args


def token_counts(stats: Any) -> tuple[int, int]:
    """Prompt tokens from this engine's prefix cache, and from the other engine.

    `stats` are vLLM's PrefillStats, whose `num_cached_tokens` is the sum.
    """
    return stats.num_local_cached_tokens, stats.num_external_cached_tokens


async def reject(engine: Any, request_id: str, transfer: Mapping[str, Any]) -> None:
    """Let the other engine free its blocks now, rather than at the end of the lease."""

    def log(error: Exception) -> None:
        logger.warning("rejecting a KV transfer failed: %s", error)

    with caught(log):
        await engine.notify_kv_transfer_request_rejected(f"{request_id}-unread", dict(transfer))


class TransferCounts:
    """Totals of NIXL's statistics, which vLLM reports per step. In the EngineCore process."""

    def __init__(self) -> None:
        self._totals: dict[str, float] = {}

    def add(self, stats: Any) -> None:
        """Add a KVConnectorStats, whose data are lists by name."""
        for name, values in stats.data.items():
            if isinstance(values, list):
                self._totals[name] = self._totals.get(name, 0) + sum(values)
        transfers = len(stats.data.get("transfer_duration", ()))
        self._totals["transfers"] = self._totals.get("transfers", 0) + transfers

    def snapshot(self) -> dict[str, float]:
        return dict(self._totals)


# vLLM's metric -> what it sums up, as in its own exporter
_COUNTERS = {
    "vllm:nixl_num_failed_transfers": (
        "num_failed_transfers", "num_failed_handshakes", "num_failed_notifications",
    ),
    "vllm:nixl_num_failed_notifications": ("num_failed_notifications",),
    "vllm:nixl_num_kv_expired_reqs": ("num_kv_expired_reqs",),
    "vllm:nixl_num_notifications_after_expiry": ("num_notifications_after_expiry",),
}  # fmt: skip
_SUMS = {
    "vllm:nixl_xfer_time_seconds": "transfer_duration",
    "vllm:nixl_bytes_transferred": "bytes_transferred",
}


def samples(totals: Mapping[str, float]) -> Iterator[Sample]:
    """Samples for `/metrics`. The histograms have one bucket: only their count and sum are kept."""
    for name, parts in _COUNTERS.items():
        yield f"{name}_total", {}, sum(totals.get(part, 0) for part in parts)
    for name, part in _SUMS.items():
        yield f"{name}_bucket", {"le": "+Inf"}, totals.get("transfers", 0)
        yield f"{name}_count", {}, totals.get("transfers", 0)
        yield f"{name}_sum", {}, totals.get(part, 0)
