import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import aiperf, report
from benchmarks.aiperf import NoWitness
from benchmarks.load import Load
from benchmarks.metric import CPU_PER_REQUEST
from benchmarks.peers import metrics
from benchmarks.scenario import CLOSED_LOOP

TOKENIZER = Path("/tokenizer")


def load(**options: Any) -> Load:
    usual = {"connections": 64, "tokens": (16, 48), "warm_up_s": 0.5, "measured_s": 3.0}
    return Load(port=8000, pids={"server": [1]}, **{**usual, **options})


def test_closed_loop_is_a_concurrency():
    """With the mean and deviation of our lengths."""

    command = aiperf.command(load(), TOKENIZER)

    assert {
        "--url=http://127.0.0.1:8000",
        "--endpoint-type=chat",
        "--concurrency=64",
        "--benchmark-duration=3.0",
        "--output-tokens-mean=32",
        "--output-tokens-stddev=9.2",
        "--streaming",
    } <= set(command)


def test_open_loop_is_a_constant_rate():
    """Not a concurrency, which would make it a closed loop."""

    command = aiperf.command(load(rate_per_s=12.5), TOKENIZER)

    assert {"--request-rate=12.5", "--request-rate-mode=constant"} <= set(command)
    assert not any(option.startswith("--concurrency") for option in command)


def test_real_engine_answers_to_the_last_token():
    """As our client asks it to."""

    command = aiperf.command(load(kind="question"), TOKENIZER)

    assert "--extra-inputs=ignore_eos:true" in command


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kind": "tools"}, "the kind tools"),
        ({"idle": 1000}, "idle streams"),
        ({"probes_per_s": 200.0}, "probes"),
        ({"drain": False}, "do not end"),
    ],
)
def test_load_that_aiperf_cannot_express_has_a_reason(options, reason):
    with pytest.raises(NoWitness, match=f"cannot express .*{reason}"):
        aiperf.command(load(**options), TOKENIZER)


def test_load_without_a_common_figure_is_not_driven():
    with pytest.raises(NoWitness, match="none of its figures"):
        aiperf.measure(load(), TOKENIZER, [CPU_PER_REQUEST])


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A program that exports what `exported` holds, or fails without that file."""
    path, exported = tmp_path / "aiperf", tmp_path / "exported.json"
    path.write_text(
        "#!/bin/sh\n"
        'for each; do case $each in --output-artifact-dir=*) folder="${each#*=}"; esac; done\n'
        f'cp {exported} "$folder/profile_export_aiperf.json"\n'
    )
    path.chmod(0o755)
    monkeypatch.setattr(aiperf, "PROGRAM", path)
    return exported


def test_figures_are_read_from_the_export(program):
    """Only those that the load's metrics have too."""

    figures = {
        "output_token_throughput": {"avg": 900.0},
        "request_throughput": {"avg": 30.0},
        "time_to_first_token": {"p50": 5.0, "p99": 6.0},
        "request_latency": {"p50": 50.0, "p99": 60.0},
    }
    program.write_text(json.dumps({"error_summary": [], **figures}))

    found = aiperf.measure(load(), TOKENIZER, metrics.CHAT)

    assert found == {
        "tokens_per_s": 900.0,
        "ttft_p50_ms": 5.0,
        "ttft_p99_ms": 6.0,
        "latency_p50_ms": 50.0,
        "latency_p99_ms": 60.0,
    }


def test_failed_requests_are_no_figures(program):
    program.write_text(json.dumps({"error_summary": [{"code": 500}]}))

    with pytest.raises(NoWitness, match="got errors"):
        aiperf.measure(load(), TOKENIZER, metrics.CHAT)


def test_failure_of_aiperf_is_a_reason(program):
    with pytest.raises(NoWitness, match="aiperf ended with 1: cp: "):
        aiperf.measure(load(), TOKENIZER, metrics.CHAT)


def test_missing_aiperf_is_a_clear_line(tmp_path, monkeypatch):
    monkeypatch.setattr(aiperf, "PROGRAM", tmp_path / "none")

    assert aiperf.missing() == "aiperf is not installed: run `make setup-clients`"


def test_figures_stand_beside_ours():
    found = {"requests_per_s": 35.4, "ttft_p50_ms": 7.5}
    ours = {"requests_per_s_closed": 1362.0, "ttft_p50_ms_closed": 6.83}

    assert report.witness(CLOSED_LOOP, found, ours) == (
        "aiperf: closed loop of 64: requests per second 35 1/s (here 1,362), "
        "TTFT p50 7.50 ms (here 6.83)"
    )
