"""`make fuzz`: runs each target for a time, one after the other or several at once.

Needs no fuzzer itself: it starts `scripts.fuzz.child`, which does.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from scripts.fuzz.targets import NAMES, corpus, target, write_corpus
from scripts.setup.clients import TOOLS
from scripts.setup.install import site_packages

FOUND = Path("build/fuzz")
_MAX_BYTES = 2048
_KEPT_BYTES = 512  # per stored input
_KEPT = 64  # stored inputs per target
_ONE_INPUT_S = 60  # a longer run is a finding: it hangs
_RUNS = re.compile(rb"stat::number_of_executed_units:\s*(\d+)")
_COVERED = re.compile(rb"cov: \d+ ft: \d+")


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of one target."""

    name: str
    seconds: float
    runs: int
    covered: str
    findings: tuple[Path, ...]
    problem: str  # why the run is invalid, without a file that shows a finding; otherwise empty

    def line(self) -> str:
        found = f"{len(self.findings)} FINDINGS" if self.findings else "no finding"
        said = self.problem if self.problem and not self.findings else found
        return (
            f"{self.name:<20} {self.seconds:6.0f} s {self.runs:>9} inputs  {self.covered}  {said}"
        )


def main() -> int:
    options = _options()
    FOUND.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.at_once) as pool:
        results = list(pool.map(lambda name: _fuzz(name, options), options.targets))
    for result in results:
        for path in result.findings:
            print(f"{path}: .venv/bin/python -m scripts.fuzz.replay {result.name} {path}")
    return 1 if any(result.problem for result in results) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=600, help="for each target")
    parser.add_argument("--target", dest="targets", action="append", choices=NAMES)
    parser.add_argument("--at-once", type=int, default=1, help="targets beside each other")
    parser.add_argument("--keep", action="store_true", help="put what it learnt into the corpus")
    options = parser.parse_args()
    options.targets = options.targets or list(NAMES)
    return options


def _fuzz(name: str, options: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as folder:
        work = Path(folder) / "corpus"
        _begin(name, work)
        words = Path(folder) / "words"
        words.write_text("".join(f'"{_escaped(word)}"\n' for word in target(name).WORDS if word))
        before, started = _findings(name), time.monotonic()
        log = FOUND / f"{name}.log"
        program = _program(name, Path(folder))
        code = _run(
            program,
            log,
            f"-max_total_time={options.seconds}",
            f"-dict={words}",
            f"-artifact_prefix={FOUND / name}-",
            str(work),
        )
        if options.keep and code == 0:
            _keep(name, work, program, log)
        told = log.read_bytes()
        result = Result(
            name=name,
            seconds=time.monotonic() - started,
            runs=int((_RUNS.findall(told) or [0])[-1]),
            covered=(_COVERED.findall(told) or [b"?"])[-1].decode(),
            findings=tuple(sorted(_findings(name) - before)),
            problem=_problem(code, told),
        )
    print(result.line(), flush=True)
    return result


def _problem(code: int, told: bytes) -> str:
    if code != 0:
        return "FAILED TO RUN"
    return "" if _COVERED.search(told) else "COUNTS NO COVERAGE"


def _begin(name: str, work: Path) -> None:
    """Create the work folder with the stored inputs and the seeds."""
    work.mkdir()
    for stored, data in corpus(name).items():
        (work / stored).write_bytes(data)
    for number, seed in enumerate(target(name).SEEDS):
        (work / f"seed-{number}").write_bytes(seed)


def _escaped(word: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word.encode("utf-8", "surrogatepass"))


def _program(name: str, folder: Path) -> Path:
    """Write an executable that runs the target's fuzzer."""
    program = folder / "fuzzer"
    child = f"{sys.executable} -m scripts.fuzz.child {program} {name}"
    program.write_text(f'#!/bin/sh\nexec {child} "$@"\n')
    program.chmod(0o700)
    return program


def _run(program: Path, log: Path, *options: str) -> int:
    paths = [str(site_packages(TOOLS / "fuzz")), os.environ.get("PYTHONPATH", "")]
    # Slow inputs are found by CPU time (`held.py`): on a busy machine any input may take seconds.
    time_limits = [f"-timeout={_ONE_INPUT_S}", f"-report_slow_units={_ONE_INPUT_S}"]
    limits = [f"-max_len={_MAX_BYTES}", "-rss_limit_mb=2048", *time_limits]
    with log.open("ab" if "-merge=1" in options else "wb") as output:
        return subprocess.run(
            [program, "-print_final_stats=1", *limits, *options],
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(paths),
                "TMPDIR": str(
                    program.parent
                ),  # the fuzzer exits without running the target's cleanup
            },
        ).returncode


def _findings(name: str) -> set[Path]:
    return {path for path in FOUND.glob(f"{name}-*") if path.suffix != ".log"}


def _keep(name: str, work: Path, program: Path, log: Path) -> None:
    """Store in the repository the fewest and shortest inputs with the same coverage."""
    least = program.with_name("least")
    least.mkdir()
    if _run(program, log, "-merge=1", f"-max_len={_KEPT_BYTES}", str(least), str(work)) != 0:
        raise RuntimeError(f"the corpus of {name} could not be merged: see {log}")
    kept = sorted(least.iterdir(), key=lambda path: (path.stat().st_size, path.name))[:_KEPT]
    write_corpus(name, {path.name[:12]: path.read_bytes() for path in kept})


if __name__ == "__main__":
    sys.exit(main())
