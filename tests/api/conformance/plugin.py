"""Collects what the tests of a run claim about request fields and checks docs/conformance.md.

A complete run compares the page with its results; `--write-conformance` writes the page instead.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.api.conformance.page import MARKS, PAGE, WRITE, Claim, Conformance

CLAIMS = pytest.StashKey["RunClaims"]()


class RunClaims:
    """The claims of the tests in one run, and which of them passed."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._claims: dict[str, list[Claim]] = {}
        self._deselected = False
        self._failed: set[str] = set()
        self._skipped: set[str] = set()
        self._passed: set[str] = set()
        self.verdict = ""

    @property
    def whole(self) -> bool:
        """True if pytest collected every test of the project."""
        return not self._deselected and self._config.args == self._config.getini("testpaths")

    def collected(self) -> list[Claim]:
        """Every claim, as if its test had passed."""
        return [claim for claims in self._claims.values() for claim in claims]

    def shown(self, *, skipped_too: bool) -> list[Claim]:
        """Claims of passed tests, and optionally of skipped ones, which may pass elsewhere."""
        tests = self._passed | (self._skipped if skipped_too else set())
        borne_out = tests - self._failed
        return [claim for test in borne_out for claim in self._claims.get(test, ())]

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._deselected = True

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self._claims[item.nodeid] = list(_claims(item))
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

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
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
