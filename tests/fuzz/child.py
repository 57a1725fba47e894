"""`python -m tests.fuzz.child PROGRAM TARGET [libFuzzer's options] [FOLDER...]`: the fuzzer's own
process. PROGRAM runs the same command: libFuzzer starts itself anew to choose among inputs.

Needs atheris, which `make fuzz` puts beside the other packages.
"""

import logging
import sys

import atheris

from tests.fuzz.targets import target

# Only these lead the fuzzer: what it learns of pydantic's Python parts leads it nowhere.
_OURS = ["openai_frontend", "schemas", "jwt"]


def main() -> None:
    program, name, *options = sys.argv[1:]
    logging.disable()  # a refusal a line would be all that it does
    with atheris.instrument_imports(include=_OURS):
        chosen = target(name)
    atheris.Setup([program, *options], chosen.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
