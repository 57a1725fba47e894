"""`make gpu-check`: what fails is reported, and a CPU is never called a GPU."""

from math import prod
from pathlib import Path

import pytest

from benchmarks.peers import model, servers
from benchmarks.peers.rounds import Result
from scripts.gpu_check import __main__ as command
from scripts.gpu_check import checks, report

PASSED = checks.Check("tools", True, 1.4, "get_weather({})")


def result(server: str, failure: str | None = None, doubts: tuple[str, ...] = ()) -> Result:
    rate = 300.0 if server == servers.GATEWAY else 200.0
    figures = {"tokens_per_s": rate, "frontend_us": 16.0, "ttft_p50_ms": 2.5}
    return Result("default", server, "32 streams", 1, figures, 0.1, doubts, failure)


def test_machine_without_a_gpu_is_refused(monkeypatch, capsys, tmp_path):
    """One line, which names the option for processors."""
    monkeypatch.setenv("PATH", str(tmp_path))

    assert command.main([]) == 2
    assert capsys.readouterr().err == command.NO_GPU
    assert command.NO_GPU.count("\n") == 1


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo 'H100, 81559 MiB, 580.95.05'; echo second", "H100, 81559 MiB, 580.95.05"),
        ("echo 'No devices were found'; exit 6", None),
        ("true", None),
    ],
)
def test_gpu_is_what_the_driver_reports(monkeypatch, tmp_path, script, found):
    """A driver without a GPU is no GPU."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert command.gpu() == found


def test_failed_check_is_a_row():
    """Its error is the detail, and the others go on."""

    def work() -> str:
        raise AssertionError("norm 3.0")

    done = checks.checked("embeddings", work)

    assert (done.passed, done.detail) == (False, "AssertionError: norm 3.0")


def test_stream_without_an_error_fails_the_kill_check():
    """An engine that died must not look like the end of an answer."""
    with pytest.raises(AssertionError, match="ended without an error after 2 chunks"):
        checks.ended_by(iter("ab"))


@pytest.mark.parametrize(
    ("done", "measured", "passed"),
    [
        ([PASSED], [result("gateway"), result("vllm")], True),
        ([PASSED, checks.Check("LoRA", False, 0, "no")], [], False),
        ([PASSED], [result("gateway", failure="the client took 90% of a core")], False),
    ],
)
def test_verdict(done, measured, passed):
    """Every check must pass, and every figure must count."""
    assert report.passed(report.document("H100", done, measured, 9)) == passed


def test_table_has_checks_and_figures():
    """Figures stand beside those of `vllm serve`, with what disturbed them."""
    measured = [result("gateway"), result("vllm", doubts=("others took 20%",))]

    table = report.markdown(report.document("none (--cpu)", [PASSED], measured, 9.2))

    assert table.startswith("GPU: none (--cpu); ")
    assert "| tools | passed, 1 s | get_weather({}) |" in table
    row = "| 32 streams: tokens/s | 300 | vllm serve 200, ratio 1.50; others took 20% |"
    assert row in table


def test_both_servers_get_the_arguments_of_the_gpu():
    """A flag that is off is left out."""
    setup = servers.Setup(Path("x"), Path("model"), servers.DEFAULT, servers.ON_GPU)

    given = servers.command(servers.VLLM, setup, 1)

    assert "--dtype=bfloat16" in given
    assert [each for each in given if "enforce-eager" in each] == []
    assert "--disable-log-stats" in given


def test_model_of_the_gpu_has_a_thousand_million_weights():
    """Enough to keep it busy."""
    config = {"vocab_size": 2048, **model.LARGE}
    weights = sum(prod(size) for _, size in model._shapes(config))

    assert 0.9e9 < weights < 1.1e9
