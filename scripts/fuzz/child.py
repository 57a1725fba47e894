"""The fuzzer's own process: `python -m scripts.fuzz.child PROGRAM TARGET [OPTION...] [FOLDER...]`.

PROGRAM is an executable that runs this command, because libFuzzer restarts itself to merge inputs;
each OPTION is libFuzzer's. Needs atheris, which `make fuzz` installs in a folder of its own.
"""

import logging
import subprocess
import sys
import tempfile
from functools import partial
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

import atheris

from scripts.fuzz.held import check_of

# Only these guide the fuzzer: coverage of pydantic's Python code does not help it.
_OURS = ["openai_frontend", "schemas", "jwt"]
_SLOWER = 4  # slowdown of instrumented code
_BY_PYTHON: tuple[object, ...] = (BuiltinImporter, FrozenImporter, PathFinder)


def main() -> None:
    program, name, *options = sys.argv[1:]
    logging.disable()  # otherwise it would mostly log refusals
    _import_by_path()
    with atheris.instrument_imports(include=_OURS):
        check = check_of(name, _SLOWER, partial(_fails_alone, name))
    atheris.Setup([program, *options], check)
    atheris.Fuzz()


def _fails_alone(name: str, data: bytes) -> bool:
    """Return whether the input is also a finding without the fuzzer, which slows down code."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        replay = [sys.executable, "-m", "scripts.fuzz.replay", name, file.name]
        return subprocess.run(replay, capture_output=True, check=False).returncode != 0


def _import_by_path() -> None:
    """Move the editable install's finder to the end: atheris does not instrument what it finds."""
    sys.meta_path.sort(key=lambda finder: finder not in _BY_PYTHON)


if __name__ == "__main__":
    main()
