"""The core in use with the readiness queries of cores since 2025-12 (newer_core.c)."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from openai_frontend.triton import library

_SOURCE = Path(__file__).with_name("newer_core.c")


class NewerCore:
    """A library that gcc builds in a copy of the core's library folder.

    A process can load only one core, so tests use it in processes that they start.
    """

    def __init__(self, folder: Path) -> None:
        real = library.find()
        libraries = folder / real.parent.name
        libraries.mkdir(parents=True)
        for each in real.parent.iterdir():
            (libraries / each.name).symlink_to(each)
        server = library.server_folder(real)
        copied = library.server_folder(libraries / real.name)
        copied.mkdir(parents=True, exist_ok=True)
        for each in server.iterdir():
            if not (copied / each.name).exists():
                (copied / each.name).symlink_to(each)
        self.library = libraries / "libtritonserver-newer.so"
        self._told = folder / "told"
        self._told.mkdir()
        self._real = real
        options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
        link = [f"-L{real.parent}", "-Wl,--no-as-needed,-rpath,$ORIGIN", f"-l:{real.name}", "-ldl"]
        command: list[str | Path] = ["gcc", *options, "-o", self.library, _SOURCE, *link]
        subprocess.run(command, check=True)

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables that the process needs in addition to the path of `library`."""
        return {
            "NEWER_CORE": os.fspath(self._told),
            "NEWER_CORE_REAL": os.fspath(self.library.with_name(self._real.name)),
        }

    def say(self, model: str, *, after_s: float = 0, ready: bool = True, stub: int = 0) -> None:
        """Sets the answer of the model's instance; `stub` is reaped when it has died."""
        written = self._told / f".{model}"
        written.write_text(f"{int(1000 * after_s)} {int(ready)} {stub}")
        written.rename(self._told / model)
