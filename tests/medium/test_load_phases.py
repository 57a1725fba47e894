"""What loading models do at the moment, also as other processes report it."""

import os
import subprocess
import sys

import pytest

from openai_frontend.runtime.load_phases import LoadPhases, report_from_engine


@pytest.fixture
def phases(monkeypatch: pytest.MonkeyPatch) -> LoadPhases:
    """Those of a gateway, whose environment has their pipe."""
    monkeypatch.setenv("_OPENAI_FRONTEND_LOAD_PHASES", "")  # restored at the end
    made = LoadPhases()
    made.connect()
    return made


def test_model_has_its_last_phase_until_it_is_loaded(phases: LoadPhases) -> None:
    """A model that is not loading has none."""
    with phases.loading("m"):
        phases.report("m", "importing")
        phases.report("m", "starting")
        assert phases.current() == {"m": "starting"}

    assert phases.current() == {}


def test_process_of_an_engine_reports_phases(phases: LoadPhases) -> None:
    """It finds the pipe by its environment. Reports on a model that does not load are ignored."""
    code = (
        "from openai_frontend.runtime.load_phases import report_from_engine as report\n"
        "report('other', 'idle'); report('m', 'reading weights'); report('m', 'compiling')"
    )
    with phases.loading("m"):
        phases.report("m", "starting")
        subprocess.run([sys.executable, "-c", code], check=True)
        assert phases.current() == {"m": "compiling"}


def test_report_without_a_gateway_is_dropped(
    phases: LoadPhases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway may be on another machine, or not read what it gets."""
    for _ in range(10_000):  # more than a pipe holds
        report_from_engine("m", "reading weights")
    monkeypatch.setenv("_OPENAI_FRONTEND_LOAD_PHASES", f"/proc/{os.getpid()}/fd/99999")
    report_from_engine("m", "reading weights")

    with phases.loading("m"):
        phases.report("m", "starting")
        assert phases.current() == {"m": "starting"}
