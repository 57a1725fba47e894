"""Replays inputs without the fuzzer: `python -m scripts.fuzz.replay [--keep] TARGET FILE...`."""

import argparse
from pathlib import Path

from scripts.fuzz.held import check_of
from scripts.fuzz.targets import NAMES, corpus, write_corpus


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.fuzz.replay", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="add the inputs to the corpus")
    parser.add_argument("target", choices=NAMES)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    options = parser.parse_args()
    check = check_of(options.target)
    inputs = {path.name: path.read_bytes() for path in options.files}
    for data in inputs.values():
        check(data)
    if options.keep:
        write_corpus(options.target, {**corpus(options.target), **inputs})


if __name__ == "__main__":
    main()
