"""The systemd unit: valid, sandboxed, and consistent with the process."""

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from openai_frontend.cli import main
from tests.gateway_process import ROOT

FOLDER = ROOT / "deploy" / "systemd"
UNIT = FOLDER / "openai-frontend@.service"

ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not here")


def read(path: Path) -> configparser.ConfigParser:
    """Parses systemd's format, as far as this file uses it."""
    parser = configparser.ConfigParser(interpolation=None, delimiters="=")
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path)
    return parser


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit with a command that exists."""
    unit = tmp_path / UNIT.name.replace("@", "@gateway")
    command = read(UNIT)["Service"]["ExecStart"].split()[0]
    unit.write_text(UNIT.read_text().replace(command, shutil.which("true") or "/bin/true"))
    return unit


def analyzed(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ANALYZE), *map(str, arguments)], capture_output=True, text=True, timeout=300
    )


@needs_systemd
def test_unit_is_valid(installed: Path) -> None:
    """`systemd-analyze verify` reports nothing."""

    result = analyzed("verify", "--man=no", installed)

    assert (result.returncode, result.stdout + result.stderr) == (0, "")


@needs_systemd
def test_verify_reports_a_misspelt_directive(installed: Path) -> None:
    """So the test above can fail."""
    installed.write_text(installed.read_text().replace("WatchdogSec", "WatchDogSeconds"))

    result = analyzed("verify", "--man=no", installed)

    assert "WatchDogSeconds" in result.stderr


@needs_systemd
def test_exposure_is_low(installed: Path) -> None:
    """By `systemd-analyze security`, from 0 to 100; a service without a sandbox has 96."""

    result = analyzed("security", "--offline=true", "--no-pager", "--threshold=25", installed)

    assert result.returncode == 0, result.stdout


def test_wrong_settings_are_not_tried_again(tmp_path: Path) -> None:
    """The process ends with the status after which systemd does not restart it."""
    (tmp_path / "gateway.yaml").write_text("prot: 9000")

    status = main(["serve", "--config", str(tmp_path / "gateway.yaml")])

    assert str(status) == read(UNIT)["Service"]["RestartPreventExitStatus"] == "2"


def test_unit_matches_the_process() -> None:
    """docs/lifecycle.md relies on these directives."""
    service = read(UNIT)["Service"]

    assert service["Type"] == "notify"
    assert service["KillMode"] == "mixed"  # engines do not receive SIGTERM
    assert service["TimeoutStartSec"] == "infinity"
    assert float(service["WatchdogSec"]) >= 10
