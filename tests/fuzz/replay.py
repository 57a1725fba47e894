"""`python -m tests.fuzz.replay TARGET FILE...`: what the fuzzer found, once more, without it."""

import sys
from pathlib import Path

from tests.fuzz.targets import target


def main() -> None:
    name, *paths = sys.argv[1:]
    chosen = target(name)
    for path in paths:
        chosen.check(Path(path).read_bytes())


if __name__ == "__main__":
    main()
