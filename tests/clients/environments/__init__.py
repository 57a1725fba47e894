"""The clients' own environments below `.venv/clients`, and how their programs run there."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.setup import clients
from scripts.setup.install import site_packages
from tests.gateway_process import ROOT

PROGRAMS = Path(__file__).parent / "programs"
# The encodings that tiktoken would download; it checks their digests.
TIKTOKEN_CACHE = (
    site_packages(ROOT / clients.CLIENTS / "sdks") / "llama_index/core/_static/tiktoken_cache"
)


class Environment:
    """One client's environment, named like its lock."""

    def __init__(self, name: str) -> None:
        self.folder = ROOT / clients.CLIENTS / name
        self._bin = self.folder / "bin"
        assert self._bin.is_dir(), f"{self.folder} is not there: run `make setup-clients`"

    def ask(self, program: str, *arguments: str) -> Any:
        """Runs one of `programs/` and returns the JSON that it prints."""
        script = PROGRAMS / f"{program}.py"
        return json.loads(self.run([str(self._bin / "python"), str(script), *arguments]).stdout)

    def run(
        self, command: Sequence[str], cwd: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command of the environment; if it fails, fails the test with its output."""
        path = os.pathsep.join([str(self._bin), os.environ["PATH"]])
        own = {"PATH": path, "LD_LIBRARY_PATH": clients.library_path(self.folder)}
        result = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **own, "TIKTOKEN_CACHE_DIR": str(TIKTOKEN_CACHE), **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert result.returncode == 0, f"{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
        return result
