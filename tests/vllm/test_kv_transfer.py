"""The gateway's side of vLLM's KV transfers, without an engine."""

import socket
from pathlib import Path
from time import monotonic_ns
from types import SimpleNamespace
from typing import Any

import pytest

from openai_frontend.engines.vllm import kv_transfer
from openai_frontend.generation import REMOTE_DECODE, KVTransfer
from tests.ports import free_port

NIXL: dict[str, Any] = {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}
PATH = Path("model.json")
READ = KVTransfer(params={"do_remote_prefill": True, "remote_block_ids": [[1]]})


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """NIXL seems installed, and its side channel has a free port."""
    for name in ("UCX_TLS", "UCX_NET_DEVICES", "NIXL_LOG_LEVEL", "VLLM_NIXL_SIDE_CHANNEL_HOST"):
        monkeypatch.setenv(name, "x")  # restored, whatever the code sets
        monkeypatch.delenv(name)
    monkeypatch.setattr(kv_transfer, "find_spec", lambda name: name)
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", str(free_port()))
    return monkeypatch


def test_failed_transfers_are_recomputed(environment: pytest.MonkeyPatch) -> None:
    """Unless model.json says otherwise; on CPUs the buffer is the cache itself."""
    on_gpu = kv_transfer.config(NIXL, PATH, on_cpu=False)
    on_cpu = kv_transfer.config(NIXL | {"kv_load_failure_policy": "fail"}, PATH, on_cpu=True)

    assert on_gpu == NIXL | {"kv_load_failure_policy": "recompute"}
    assert on_cpu == NIXL | {"kv_load_failure_policy": "fail", "kv_buffer_device": "cpu"}


def test_transport_stays_on_loopback(environment: pytest.MonkeyPatch) -> None:
    """While the side channel does. UCX would listen on every network device."""
    import os

    kv_transfer.config(NIXL, PATH, on_cpu=True)
    assert (os.environ["UCX_TLS"], os.environ["UCX_NET_DEVICES"]) == ("tcp,self", "lo")

    environment.delenv("UCX_NET_DEVICES")
    environment.setenv("VLLM_NIXL_SIDE_CHANNEL_HOST", "0.0.0.0")  # noqa: S104  listens for a moment
    kv_transfer.config(NIXL, PATH, on_cpu=True)
    assert "UCX_NET_DEVICES" not in os.environ


def test_missing_nixl_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_transfer, "find_spec", lambda name: None)

    with pytest.raises(ValueError, match=r"^model\.json: .*needs the package nixl; install it"):
        kv_transfer.config(NIXL, PATH, on_cpu=True)


def test_side_channel_in_use_is_one_line(environment: pytest.MonkeyPatch) -> None:
    """vLLM would wait forever for its listener, and the model would never load."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        environment.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", str(port))
        environment.setenv("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.1")

        with pytest.raises(
            ValueError, match=rf"cannot listen on 127.0.0.1:{port}: .*; set VLLM"
        ) as refused:
            kv_transfer.config(NIXL, PATH, on_cpu=True)
    assert "unload it before you load another one, or the same one again" in str(refused.value)


def test_other_connectors_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """And make no server of a role."""
    other = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}

    assert kv_transfer.config(other, PATH, on_cpu=True) == other
    assert kv_transfer.described(other) is None


def test_facts_of_a_config() -> None:
    extra = {"kv_connector_extra_config": {"kv_lease_duration": 9}}
    found = kv_transfer.described(NIXL | extra | {"kv_load_failure_policy": "fail"}, blocks=7)

    assert found is not None
    assert (found.role, found.recomputes, found.lease_s) == ("kv_producer", False, 9)
    assert (found.blocks, kv_transfer.described(NIXL).lease_s) == (7, 30)


def test_transfer_is_kept_beside_the_requests_own_arguments() -> None:
    params = SimpleNamespace(extra_args={"plug-in": 1})
    params = kv_transfer.attached(params, READ)

    assert params.extra_args == {"plug-in": 1, "kv_transfer_params": dict(READ.params)}
    assert kv_transfer.take_late(params) is None
    assert kv_transfer.unread(params) == READ.params


def test_late_transfer_is_taken_away() -> None:
    """The engine gets neither it nor its time, and reports that it has read nothing."""
    params = SimpleNamespace(extra_args=None)
    params = kv_transfer.attached(
        params, KVTransfer(params=READ.params, expires_ns=monotonic_ns() - 1)
    )

    assert kv_transfer.take_late(params) == READ.params
    assert params.extra_args == {"kv_transfer_params": {}}
    assert kv_transfer.has_transfer(params)
    assert kv_transfer.unread(params) is None


def test_transfer_in_time_reaches_the_engine() -> None:
    params = SimpleNamespace(extra_args=None)
    params = kv_transfer.attached(
        params, KVTransfer(params=READ.params, expires_ns=monotonic_ns() + 10**10)
    )

    assert kv_transfer.take_late(params) is None
    assert params.extra_args == {"kv_transfer_params": dict(READ.params)}


def test_prompt_for_another_engine_has_nothing_to_return() -> None:
    params = SimpleNamespace(extra_args=None)
    params = kv_transfer.attached(params, REMOTE_DECODE)

    assert kv_transfer.unread(params) is None


def test_tokens_of_the_prefix_cache_and_of_the_transfer() -> None:
    """vLLM's `num_cached_tokens` is their sum."""
    stats = SimpleNamespace(num_local_cached_tokens=32, num_external_cached_tokens=64)

    assert kv_transfer.token_counts(stats) == (32, 64)


def test_statistics_are_summed_up() -> None:
    """vLLM reports lists per step, and its own exporter groups three kinds of failures."""
    counts = kv_transfer.TransferCounts()
    step = {"transfer_duration": [0.5, 0.25], "bytes_transferred": [10, 20]}
    for data in (step, {"num_failed_handshakes": [1], "num_failed_transfers": [1]}, step):
        counts.add(SimpleNamespace(data=data))
    found = {name: value for name, _, value in kv_transfer.samples(counts.snapshot())}

    assert found["vllm:nixl_num_failed_transfers_total"] == 2
    assert found["vllm:nixl_num_notifications_after_expiry_total"] == 0
    assert found["vllm:nixl_xfer_time_seconds_sum"] == 1.5
    assert found["vllm:nixl_bytes_transferred_count"] == 4
    assert found["vllm:nixl_bytes_transferred_sum"] == 60
