"""The service file: systemd takes it, it grants little, and it fits what the process does."""

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.gateway_process import ROOT

FOLDER = ROOT / "deploy" / "systemd"
UNIT = FOLDER / "openai-frontend.service"

ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not here")


def read(path: Path) -> configparser.ConfigParser:
    """systemd's own form, as far as this file uses it."""
    parser = configparser.ConfigParser(interpolation=None, delimiters="=")
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path)
    return parser


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit with a command that is there."""
    unit = tmp_path / UNIT.name
    command = read(UNIT)["Service"]["ExecStart"].split()[0]
    unit.write_text(UNIT.read_text().replace(command, shutil.which("true") or "/bin/true"))
    return unit


def analyzed(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ANALYZE), *map(str, arguments)], capture_output=True, text=True, timeout=30
    )


@needs_systemd
def test_systemd_takes_it(installed: Path) -> None:
    """Each directive and value is one that it knows: it says nothing."""

    result = analyzed("verify", "--man=no", installed)

    assert (result.returncode, result.stdout + result.stderr) == (0, "")


@needs_systemd
def test_systemd_refuses_a_misspelt_one(installed: Path) -> None:
    """The test above can fail."""
    installed.write_text(installed.read_text().replace("WatchdogSec", "WatchDogSeconds"))

    result = analyzed("verify", "--man=no", installed)

    assert "WatchDogSeconds" in result.stderr


@needs_systemd
def test_what_it_may_do(installed: Path) -> None:
    """systemd's own measure of exposure, from 0 to 100: an unguarded service has 96."""

    result = analyzed("security", "--offline=true", "--no-pager", "--threshold=25", installed)

    assert result.returncode == 0, result.stdout


def test_it_fits_the_process() -> None:
    """What docs/lifecycle.md promises needs these, whatever else is set."""
    service = read(UNIT)["Service"]

    assert service["Type"] == "notify"
    assert service["KillMode"] == "mixed"  # engines do not hear SIGTERM
    assert service["TimeoutStartSec"] == "infinity"
    assert float(service["WatchdogSec"]) >= 10
