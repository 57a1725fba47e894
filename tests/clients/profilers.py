"""genai-perf and aiperf as commands, and what their exports say of a run."""

import json
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


Runs = Mapping[str, Sequence[str]]  # the endpoint's kind -> the options of its run
FolderOfRun = Callable[[str], Path]


def once(
    profile: Callable[..., None], url: str, runs: Runs, folders: pytest.TempPathFactory
) -> FolderOfRun:
    """Profiles an endpoint when it is first asked for; gives the folder of the exports."""

    @cache
    def folder_of(kind: str) -> Path:
        folder = folders.mktemp(kind)
        profile(url, folder, kind, *runs[kind])
        return folder

    return folder_of


def genai_perf(url: str, folder: Path, kind: str, *options: str) -> None:
    """Profile one endpoint; the exports lie below `folder`."""
    # It wants a host and a port, without a scheme.
    command = ["genai-perf", "profile", f"--endpoint-type={kind}", f"--url={url.split('//')[1]}"]
    # By time: counting to a set number, perf_analyzer waits for ever where all requests have ended
    # before it looks, as they may on a busy machine.
    where = ["--measurement-interval=1000", f"--artifact-dir={folder}"]
    Environment("genai-perf").run([*command, *COMMON, *where, *options], folder, HF_HUB_OFFLINE="1")


def aiperf(url: str, folder: Path, kind: str, *options: str) -> None:
    """Profile one endpoint; the exports lie below `folder`."""
    command = ["aiperf", "profile", f"--endpoint-type={kind}", f"--url={url}", "--ui=none"]
    where = [f"--request-count={REQUESTS}", "--no-gpu-telemetry", f"--output-artifact-dir={folder}"]
    # Offline it takes a folder for a name of the hub's; it asks the hub for nothing here anyway.
    Environment("aiperf").run([*command, *COMMON, *where, *options], folder, HF_HUB_OFFLINE="")


def exported(folder: Path, name: str) -> dict[str, Any]:
    """The one file of that name below the folder."""
    [path] = folder.rglob(name)
    found: dict[str, Any] = json.loads(path.read_text())
    return found
