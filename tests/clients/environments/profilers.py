"""genai-perf and aiperf as commands, and the exports of their runs."""

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import Environment
from tests.gateway_process import ROOT

TOKENIZER = ROOT / "model_repository" / "demo" / "1" / "weights"
REQUESTS = 6
OUTPUT_TOKENS = 8
COMMON = ("--concurrency=2", f"--tokenizer={TOKENIZER}")
WITHOUT_TOKENIZER = ("audio_transcription",)  # aiperf's endpoint types, which refuse the option
# Options whose values the tests replace: addresses, and sizes of the load.
REPLACED = (
    *("--endpoint-type", "--url", "--tokenizer", "--concurrency", "--request-count"),
    *("--synthetic-input-tokens-mean", "--output-tokens-mean"),
)
SMALL = ("--synthetic-input-tokens-mean=20", f"--output-tokens-mean={OUTPUT_TOKENS}")


def documented(program: str, endpoint: str = "chat") -> tuple[str, ...]:
    """The options of the program's command in docs/load-testing.md, for a small load."""
    page = (ROOT / "docs" / "load-testing.md").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(rf"^{program} profile (.*)$", page, re.MULTILINE)
    [command] = [each for each in commands if f"--endpoint-type={endpoint} " in each]
    kept = [word for word in shlex.split(command) if word.partition("=")[0] not in REPLACED]
    return (*kept, *SMALL)


# Endpoint type, and behind it what sets this run of it apart -> options of the run
Runs = Mapping[str, Sequence[str]]
FolderOfRun = Callable[[str], Path]


def once(
    profile: Callable[..., None], url: str, runs: Runs, folders: pytest.TempPathFactory
) -> FolderOfRun:
    """Profiles an endpoint on first use and returns the folder with the exports."""

    @cache
    def folder_of(kind: str) -> Path:
        endpoint = kind.partition(" ")[0]
        folder = folders.mktemp(endpoint)
        profile(url, folder, endpoint, *runs[kind])
        return folder

    return folder_of


def genai_perf(url: str, folder: Path, kind: str, *options: str) -> None:
    """Profiles one endpoint; the exports are below `folder`."""
    # It expects a host and a port, without a scheme.
    command = ["genai-perf", "profile", f"--endpoint-type={kind}", f"--url={url.split('//')[1]}"]
    # By windows of requests: with a request count, perf_analyzer waits for ever if all requests end
    # before it checks; and with an interval, it fails if none ends in one. Both can happen on a
    # busy machine.
    where = [f"--artifact-dir={folder}"]
    windows = ["--", "--measurement-mode=count_windows", "--measurement-request-count=20"]
    Environment("genai-perf").run(
        [*command, *COMMON, *where, *options, *windows], folder, HF_HUB_OFFLINE="1"
    )


def aiperf(url: str, folder: Path, kind: str, *options: str) -> None:
    """Profiles one endpoint; the exports are below `folder`."""
    command = ["aiperf", "profile", f"--endpoint-type={kind}", f"--url={url}", "--ui=none"]
    where = [f"--request-count={REQUESTS}", "--no-gpu-telemetry", f"--output-artifact-dir={folder}"]
    common = COMMON[:1] if kind in WITHOUT_TOKENIZER else COMMON
    # Offline it treats a folder as a name on the hub; it sends no request to the hub here anyway.
    Environment("aiperf").run([*command, *common, *where, *options], folder, HF_HUB_OFFLINE="")


def exported(folder: Path, name: str) -> dict[str, Any]:
    """The only file of that name below the folder."""
    [path] = folder.rglob(name)
    found: dict[str, Any] = json.loads(path.read_text())
    return found
