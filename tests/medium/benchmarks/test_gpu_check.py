"""`make gpu-check`: what fails is reported, and a CPU is never called a GPU."""

import pytest

from benchmarks.peers import servers
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
