"""Collects what the tests of a run claim about request fields and checks docs/conformance.md.

A complete run compares the page with its results; `--write-conformance` writes the page instead.
"""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from xdist import is_xdist_worker
from xdist.workermanage import WorkerController

from tests.api.conformance.page import MARKS, PAGE, WRITE, Claim, Conformance

CLAIMS = pytest.StashKey["RunClaims"]()
_OUTPUT = "conformance_claims"


class RunClaims:
    """The claims of the tests in one run, and which of them passed."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._claims: dict[str, list[Claim]] = {}
        self._deselected: list[Claim] | None = None
        self._failed: set[str] = set()
        self._skipped: set[str] = set()
        self._passed: set[str] = set()
        self.verdict = ""

    @property
    def complete(self) -> bool:
        """True if pytest collected every test of the project, whichever it then selected."""
        every_path = self._config.args == self._config.getini("testpaths")
        return every_path and not self._config.getoption("lf")

    @property
    def whole(self) -> bool:
        """True if the run selects every test of the project."""
        return self.complete and self._deselected is None

    def collected(self) -> list[Claim]:
        """Every claim, as if its test had passed."""
        selected = [claim for claims in self._claims.values() for claim in claims]
        return selected + (self._deselected or [])

    def shown(self, *, skipped_too: bool) -> list[Claim]:
        """Claims of passed tests, and optionally of skipped ones, which may pass elsewhere."""
        tests = self._passed | (self._skipped if skipped_too else set())
        borne_out = tests - self._failed
        return [claim for test in borne_out for claim in self._claims.get(test, ())]

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        claims = [claim for item in items for claim in _claims(item)]
        self._deselected = (self._deselected or []) + claims

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if claims := _claims(item):
                self._claims[item.nodeid] = claims
        target = session.config.option.conformance_claims
        if target:
            lines = [f"{claim.field} {claim.status} {claim.test}" for claim in self.collected()]
            Path(target).write_text("\n".join(lines))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or hasattr(report, "wasxfail"):
            self._failed.add(report.nodeid)
        elif report.skipped:
            self._skipped.add(report.nodeid)
        elif report.when == "call":
            self._passed.add(report.nodeid)

    def pytest_testnodedown(self, node: WorkerController) -> None:
        """Only the workers collect, each all tests; one that crashed has no output."""
        output = getattr(node, "workeroutput", {})
        if _OUTPUT in output:
            self._claims, self._deselected = pickle.loads(output[_OUTPUT])  # noqa: S301 our own

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if is_xdist_worker(session):
            output: dict[str, Any] = self._config.workeroutput  # type: ignore[attr-defined]
            output[_OUTPUT] = pickle.dumps((self._claims, self._deselected))
            return
        option = session.config.option
        ended_early = session.shouldstop or session.shouldfail
        if option.collectonly or not self.whole or ended_early:
            if option.write_conformance:
                self.verdict = f"{PAGE.name} is not written: this is no run of all tests"
        elif option.write_conformance:
            PAGE.write_text(Conformance(self.shown(skipped_too=False)).page())
            self.verdict = f"{PAGE.name} is written"
        elif PAGE.read_text() != Conformance(self.shown(skipped_too=True)).page():
            self.verdict = f"docs/{PAGE.name} differs from what this run showed: {WRITE}"
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.verdict:
            terminalreporter.section("conformance")
            terminalreporter.line(self.verdict)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The two options that write the claims."""
    group = parser.getgroup("conformance")
    group.addoption(
        "--write-conformance", action="store_true", help="write docs/conformance.md (whole runs)"
    )
    group.addoption(
        "--conformance-claims", metavar="FILE", help="write what the collected marks claim"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers one object for the run."""
    config.stash[CLAIMS] = claims = RunClaims(config)
    config.pluginmanager.register(claims, "conformance-claims")


def _claims(item: pytest.Item) -> list[Claim]:
    test = item.nodeid.partition("[")[0]
    return [
        Claim(field, status, test)
        for mark, status in MARKS.items()
        for each in item.iter_markers(mark)
        for field in each.args
    ]
