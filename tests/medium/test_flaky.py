"""The repetition of failed tests (`--repeat-failures`)."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Each test fails until it has failed `FAILURES` times: 1 is flaky, 2 is a real failure.
TESTS = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("name", [{names}])
def test_it(name):
    runs = Path(name)
    runs.write_text((runs.read_text() if runs.exists() else "") + "x")
    if len(runs.read_text()) <= {failures}:
        {fail}
"""
FAIL, CRASH = "pytest.fail()", "import os; os.abort()"


def run(
    folder: Path, names: list[str], failures: int, *options: str, fail: str = FAIL
) -> tuple[int, str]:
    """The exit code and the output of a run in `folder`."""
    quoted = ", ".join(repr(name) for name in names)
    (folder / "test_example.py").write_text(
        TESTS.format(names=quoted, failures=failures, fail=fail)
    )
    command = [sys.executable, "-m", "pytest", "-pxdist", "-ptests.flaky", "--repeat-failures"]
    isolated = ["-c/dev/null", f"--rootdir={folder}", "-pno:cacheprovider", *options]
    result = subprocess.run(
        [*command, *isolated, "test_example.py"],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return result.returncode, result.stdout


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_a_test_that_passes_alone_is_flaky_and_the_run_passes(tmp_path: Path, workers: str):
    code, output = run(tmp_path, ["a", "b"], 1, workers)

    assert code == pytest.ExitCode.OK
    assert "FLAKY test_example.py::test_it[b]: failed in the whole run, passed alone" in output
    assert "2 flaky tests; a run with more than 2 fails" in output
    assert (tmp_path / "a").read_text() == "xx"


def test_a_test_that_ends_its_worker_counts_as_failed(tmp_path: Path):
    """As native code may, once in many runs. Another worker runs the tests that are left."""
    code, output = run(tmp_path, ["a", "b"], 1, "-n1", "--maxfail=9", fail=CRASH)

    assert code == pytest.ExitCode.OK
    assert "FLAKY test_example.py::test_it[a]" in output
    assert "2 flaky tests" in output


def test_more_than_two_flaky_tests_fail_the_run(tmp_path: Path):
    code, output = run(tmp_path, ["a", "b", "c"], 1, "-n0")

    assert code == pytest.ExitCode.TESTS_FAILED
    assert "3 flaky tests" in output


def test_a_test_that_fails_again_fails_the_run(tmp_path: Path):
    """It is repeated once, not until it passes."""
    code, output = run(tmp_path, ["a"], 2, "-n0")

    assert code == pytest.ExitCode.TESTS_FAILED
    assert "FLAKY" not in output
    at_the_end = output.partition("repeating alone")[2]
    assert "FAILED test_example.py::test_it[a]" in at_the_end
    assert "in the whole run, test_example.py::test_it[a] failed: " in at_the_end
    assert (tmp_path / "a").read_text() == "xx"


def test_many_failures_are_not_repeated(tmp_path: Path):
    names = [f"t{number}" for number in range(11)]
    code, output = run(tmp_path, names, 1, "-n0")

    assert code == pytest.ExitCode.TESTS_FAILED
    assert "11 tests failed: too many to repeat alone (at most 10)" in output
    assert (tmp_path / "t0").read_text() == "x"


def test_without_failures_nothing_is_repeated(tmp_path: Path):
    code, output = run(tmp_path, ["a"], 0, "-n0")

    assert code == pytest.ExitCode.OK
    assert "repeating" not in output
