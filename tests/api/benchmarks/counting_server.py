"""The gateway with counted_allocations.c. Started by test_cpu_guard."""

import ctypes
import os
import sys

from openai_frontend.cli import main


def _run(library: str, counts: str, arguments: list[str]) -> int:
    if ctypes.PyDLL(library).install(os.fsencode(counts)) != 0:
        raise OSError(f"cannot map {counts}")
    return main(arguments)


if __name__ == "__main__":
    sys.exit(_run(sys.argv[1], sys.argv[2], sys.argv[3:]))
