"""An agent's program, run once in a folder of its own against a server."""

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from scripts.setup import npm
from tests.gateway_process import ROOT

INSTALLED = ROOT / npm.INSTALLED
MODEL, KEY = "agent", "local-key"
CONTEXT_TOKENS, OUTPUT_TOKENS = 200_000, 16_000

Api = Literal["chat", "responses", "messages"]
Call = tuple[str, Mapping[str, Any]]  # of a tool: its name and arguments


@dataclass(frozen=True)
class Folders:
    """The folders of one run: the program's own files, and the project that it works on."""

    home: Path
    project: Path

    @classmethod
    def below(cls, folder: Path) -> "Folders":
        made = cls(folder / "home", folder / "project")
        made.home.mkdir(parents=True)
        made.project.mkdir()
        return made


# Writes the configuration for a server's URL, without /v1; returns environment variables
Configure = Callable[[str, Folders], Mapping[str, str]]


@dataclass(frozen=True)
class Agent:
    """One program with one API."""

    name: str
    package: str  # of npm
    program: str  # below node_modules
    api: Api
    configure: Configure
    arguments: tuple[str, ...]  # before the prompt
    run_command: Callable[[str], Call]
    # From the project's folder, a file's name, its text before and after
    read: Callable[[Path, str], Call]
    edit: Callable[[Path, str, str, str], Call]
    variant: str = ""  # of the configuration
    arguments_after: tuple[str, ...] = field(default=())
    manifest: str = "agents"  # the folder of `requirements/npm` that has the package

    @property
    def executable(self) -> Path:
        return INSTALLED / self.manifest / "node_modules" / self.program

    @property
    def installed(self) -> bool:
        return self.executable.is_file()

    def run(
        self, url: str, folders: Folders, prompt: str, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run the program once with the prompt, without a terminal."""
        own = {
            "PATH": os.pathsep.join([str(npm.node_folder()), "/usr/local/bin:/usr/bin:/bin"]),
            "HOME": str(folders.home),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "NO_PROXY": "127.0.0.1",
        }
        return subprocess.run(
            [str(self.executable), *self.arguments, prompt, *self.arguments_after],
            cwd=folders.project,
            env={**own, **self.configure(url, folders)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
