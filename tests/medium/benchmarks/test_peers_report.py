import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks.load import Measured
from benchmarks.peers import command, metrics, rust_binary, servers
from benchmarks.peers.processes import ENGINE, FRONTEND, SUPERVISOR
from benchmarks.peers.rounds import Result, doubts, failure
from benchmarks.peers.servers import (
    DEFAULT,
    GATEWAY,
    GENERATE,
    LEAN,
    VLLM,
    VLLM_RUST,
    Setup,
)
from benchmarks.peers.summary import summaries

MEASURED = Measured(
    seconds=2.0,
    cpu_s={FRONTEND: 0.3, ENGINE: 2.0, SUPERVISOR: 0.1},
    client_cpu_s=0.2,
    machine_cpu_s=2.6,
    tokens=20_000,
    chunks=16_000,
    responses=100,
    ttft_s=[0.01, 0.03],
    gap_s=[0.003, 0.007],
    latency_s=[0.6, 0.62],
    late_s=[0.00001],
)


def result(server: str, number: int, *, failed: str | None = None, **values: float) -> Result:
    return Result(LEAN, server, "64 streams", number, values, 0.1 * number, (), failed)


def test_cpu_is_divided_by_tokens_not_chunks():
    """A supervisor is part of the frontend; the engine is counted separately."""

    found = {metric.name: metric.of(MEASURED) for metric in metrics.CHAT}

    assert found["frontend_us"] == pytest.approx(20)
    assert found["engine_us"] == pytest.approx(100)
    assert found["tokens_per_s"] == 10_000
    assert found["tokens_per_chunk"] == 1.25
    assert (found["ttft_p99_ms"], found["gap_p50_ms"]) == (30.0, 3.0)


def test_summary_is_median_and_range_of_valid_measurements():
    """A discarded measurement is only counted."""

    rounds = [result(GATEWAY, number, frontend_us=us) for number, us in enumerate((9, 1, 2), 1)]
    rounds.append(result(GATEWAY, 4, failed="the client was the limit", frontend_us=0.1))
    (found,) = summaries(rounds)

    assert found["figures"] == {"frontend_us": {"median": 2, "low": 1, "high": 9}}
    assert (found["rounds"], found["failed"], found["client_share"]) == (4, 1, 0.4)


def test_measurement_limited_by_the_client_is_discarded():
    """The client was busy for more than 80 % of a core."""

    assert failure(MEASURED) is None
    busy = dataclasses.replace(MEASURED, client_cpu_s=1.61)
    assert failure(busy) == "the client took 80% of a core"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"machine_cpu_s": 3.2}, "others took 15% of the machine"),
        ({"client_wait_s": 0.6}, "the client waited for a core for 30% of the time"),
        (
            {"late_s": [0.0001, 0.002]},
            "the client sent late: p99 2.0 ms, which is in all times",
        ),
    ],
)
def test_disturbed_measurement_is_doubtful(changed, message):
    """Other programs disturbed it, or the client had no core."""

    assert list(doubts(MEASURED, 2)) == []
    assert list(doubts(dataclasses.replace(MEASURED, **changed), 2)) == [message]


@pytest.mark.parametrize("flags", [LEAN, DEFAULT])
def test_all_servers_have_the_same_engine_options(flags, tmp_path: Path, monkeypatch):
    """Arguments and environment differ only in the frontend's options."""

    binary = tmp_path / "vllm-rs"
    binary.touch()
    monkeypatch.setattr(rust_binary, "cached", lambda: binary)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    setup = Setup(tmp_path, tmp_path / "weights", flags, GENERATE)
    vllm, rust = (servers.command(name, setup, 1)[4:] for name in (VLLM, VLLM_RUST))
    servers.command(GATEWAY, setup, 1)
    told = json.loads((tmp_path / "repository/peer/1/model.json").read_text())
    environments = [servers.environment(name, flags) for name in servers.SERVERS]

    assert vllm == rust
    assert told.pop("model") == str(setup.model)
    assert told == servers.ENGINE_ARGUMENTS | GENERATE
    for name, value in told.items():
        option = f"--{name.replace('_', '-')}"
        assert (option if value is True else f"{option}={value}") in vllm
    assert environments[0] == environments[1]
    assert set(environments[2].items()) - set(environments[0].items()) == {
        ("VLLM_USE_RUST_FRONTEND", "1"),
        ("VLLM_RUST_FRONTEND_PATH", str(binary)),
    }
    assert environments[0].get("OMP_NUM_THREADS") == ("1" if flags == LEAN else None)


def test_discarded_measurement_sets_the_exit_code(monkeypatch, capsys, tmp_path: Path):
    """The run is stored nevertheless."""

    failed = result(GATEWAY, 1, failed="the client was late", frontend_us=20.0)
    monkeypatch.setattr(command, "_measured", lambda *_: [failed])
    file = tmp_path / "figures.json"

    assert command.main([f"--json={file}"]) == command.DISCARDED
    document = json.loads(file.read_text())
    assert document["results"][0]["failure"] == "the client was late"
    assert document["summaries"][0]["figures"] == {}
    assert "DISCARDED" in capsys.readouterr().out
