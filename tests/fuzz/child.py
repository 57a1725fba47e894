"""`python -m tests.fuzz.child PROGRAM TARGET [libFuzzer's options] [FOLDER...]`: the fuzzer's own
process. PROGRAM runs the same command: libFuzzer starts itself anew to choose among inputs.

Needs atheris, which `make fuzz` puts beside the other packages.
"""

import logging
import subprocess
import sys
import tempfile
from functools import partial
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

import atheris

from tests.fuzz.held import check_of

# Only these lead the fuzzer: what it learns of pydantic's Python parts leads it nowhere.
_OURS = ["openai_frontend", "schemas", "jwt"]
_SLOWER = 4  # how many times longer they take for it
_BY_PYTHON: tuple[object, ...] = (BuiltinImporter, FrozenImporter, PathFinder)


def main() -> None:
    program, name, *options = sys.argv[1:]
    logging.disable()  # a refusal a line would be all that it does
    _import_by_path()
    with atheris.instrument_imports(include=_OURS):
        check = check_of(name, _SLOWER, partial(_fails_alone, name))
    atheris.Setup([program, *options], check)
    atheris.Fuzz()


def _fails_alone(name: str, data: bytes) -> bool:
    """Whether the input is a finding without the fuzzer, which makes code slower."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        replay = [sys.executable, "-m", "tests.fuzz.replay", name, file.name]
        return subprocess.run(replay, capture_output=True, check=False).returncode != 0


def _import_by_path() -> None:
    """Let the finder of the editable install come last: what it finds, atheris does not count."""
    sys.meta_path.sort(key=lambda finder: finder not in _BY_PYTHON)


if __name__ == "__main__":
    main()
