"""A pytest plugin for `--repeat-failures`: repeats the failed tests of a run once, one by one.

A test that passes then failed because of what ran beside it: it is printed as flaky, and the run
passes if there are at most two. CI on a busy machine does not lose a whole run to one such test.
"""

import subprocess
import sys
from collections.abc import Generator, Mapping

import pytest

MAX_FLAKY = 2
# More failures have one cause, such as a shared gateway that did not start.
MAX_REPEATED = 10

_REASON_CHARACTERS = 600  # of each failure, printed again at the end

_OPTION = "--repeat-failures"


class Failures:
    """Collects failed tests, in order, with their reasons; with xdist, of all workers."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = str(report.longrepr) if crash is None else crash.message
            self.reasons.setdefault(report.nodeid, reason[:_REASON_CHARACTERS])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        _OPTION,
        action="store_true",
        help=f"repeat failed tests once, alone; pass if at most {MAX_FLAKY} pass only then",
    )


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    failures = Failures()
    in_worker = hasattr(config, "workerinput")
    if in_worker or not config.getoption(_OPTION):
        return (yield)
    config.pluginmanager.register(failures)
    code = yield
    if code != pytest.ExitCode.TESTS_FAILED or not failures.reasons:
        return code
    return _repeat(config, failures.reasons)


def _repeat(config: pytest.Config, failed: Mapping[str, str]) -> pytest.ExitCode:
    """Returns the exit code of the whole run."""
    say = config.get_terminal_writer().line
    if len(failed) > MAX_REPEATED:
        say(f"{len(failed)} tests failed: too many to repeat alone (at most {MAX_REPEATED})")
        return pytest.ExitCode.TESTS_FAILED
    say(f"repeating alone: {', '.join(failed)}", flush=True)
    options = [arg for arg in config.invocation_params.args if arg not in {_OPTION, *config.args}]
    # -r lists each with its outcome at the end, which is what CI's log keeps.
    command = [sys.executable, "-m", "pytest", *map(str, options), "-n", "0", "-rfEp", *failed]
    repeated = subprocess.run(command, cwd=config.invocation_params.dir, check=False)
    for test, reason in failed.items():  # also at the end
        say(f"in the whole run, {test} failed: {reason}")
    if repeated.returncode:
        return pytest.ExitCode.TESTS_FAILED
    for test in failed:
        say(f"FLAKY {test}: failed in the whole run, passed alone")
    say(f"{len(failed)} flaky tests; a run with more than {MAX_FLAKY} fails")
    return pytest.ExitCode.TESTS_FAILED if len(failed) > MAX_FLAKY else pytest.ExitCode.OK
