"""Run in place of Triton's Python stub: starts it in the environment that the gateway recorded.

Libraries that models import later change the gateway's own variables. The base interpreter runs
this file alone (`python3 -IS`), so it imports nothing from this package.
"""

import glob
import json
import os
import sys
from typing import Any

_VARIABLE = "LD_LIBRARY_PATH"
# Triton does the same. The stub removes the first folder again and rejects a path without a colon.
_ACTIVATE = 'source "$0" && export LD_LIBRARY_PATH="$1:${LD_LIBRARY_PATH-}" && shift && exec "$@"'


def command(
    launch: dict[str, Any], library_path: str, arguments: list[str]
) -> tuple[list[str], dict[str, str]]:
    """Return the stub's command and its environment.

    `launch` is what `python_backend` has written; `library_path` the LD_LIBRARY_PATH with which
    Triton started this process.
    """
    environment = dict(launch["environment"])
    recorded = environment.get(_VARIABLE, "")
    own = _execution_environment(library_path, recorded, launch["prefix"])
    if own is not None:
        numpy_1 = glob.glob(f"{own}/lib/python{launch['version']}/site-packages/numpy-1.*")
        stub = launch["numpy_1_stub" if numpy_1 else "numpy_2_stub"]
        activate = ["bash", "-c", _ACTIVATE, f"{own}/bin/activate", f"{own}/lib"]
        return [*activate, stub, *arguments], environment
    environment[_VARIABLE] = ":".join(filter(None, [launch["libraries"], recorded]))
    environment["PATH"] = ":".join([launch["binaries"], environment.get("PATH", os.defpath)])
    return [launch["stub"], *arguments], environment


def _execution_environment(library_path: str, recorded: str, prefix: str) -> str | None:
    """The folder of the model's EXECUTION_ENV_PATH; None if it has none.

    Triton requires bin/activate in it and prepends its lib to LD_LIBRARY_PATH. An import may have
    prepended another folder, which has no such file next to it.
    """
    first = library_path.split(":")[0]
    folder, name = os.path.split(first)
    added = library_path.split(":").count(first) > recorded.split(":").count(first)
    if name != "lib" or not added or os.path.realpath(folder) == os.path.realpath(prefix):
        return None
    return folder if os.path.isfile(os.path.join(folder, "bin", "activate")) else None


def _main(file: str, library_path: str, *arguments: str) -> None:
    with open(file, "rb") as launch_file:
        launch = json.load(launch_file)
    program, environment = command(launch, library_path, list(arguments))
    # Latin-1 keeps the bytes, which need not be valid in any encoding
    encoded = {
        name.encode("latin-1"): value.encode("latin-1") for name, value in environment.items()
    }
    os.execvpe(program[0], program, encoded)  # noqa: S606  the stub, or bash


if __name__ == "__main__":
    _main(*sys.argv[1:])
