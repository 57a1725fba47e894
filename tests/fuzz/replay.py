"""`python -m tests.fuzz.replay TARGET FILE...`: what the fuzzer found, once more, without it."""

import sys
from pathlib import Path

from tests.fuzz.held import check_of


def main() -> None:
    name, *paths = sys.argv[1:]
    check = check_of(name)
    for path in paths:
        check(Path(path).read_bytes())


if __name__ == "__main__":
    main()
