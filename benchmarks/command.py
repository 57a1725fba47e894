"""The command: rounds between canaries, then the report."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks import budgets, hot_spots, machine, mock_repository, report
from benchmarks.measurement import Bench, ClientFailed, Round
from benchmarks.noise import Doubt, doubts, undoubted
from benchmarks.plan import FULL, QUICK, Plan
from benchmarks.process_stat import Cores
from benchmarks.server_process import ServerFailed, ServerProcess

# Exit codes: 0 is a run, 1 one that misses a demanded budget, 2 one that did not work
MISSED = 1
FAILED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code."""
    given = _parser().parse_args(arguments)
    plan = QUICK if given.quick else FULL
    if given.rounds is not None:
        plan = replace(plan, rounds=given.rounds)
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        bench = _bench(Path(folder), plan)
        try:
            if given.profile:
                for title, rows in hot_spots.profiles(bench):
                    print(f"{title}\n{rows}\n")
                return 0
            return _run(bench, given.json, check=given.check)
        except (ClientFailed, ServerFailed) as error:
            sys.stderr.write(f"benchmarks: {error}\n")
            return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look, in less than a minute")
    parser.add_argument("--rounds", type=_positive, help="how often everything is measured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 where a demanded budget is missed"
    )
    parser.add_argument(
        "--profile", action="store_true", help="show where 64 streams spend the server's time"
    )
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _bench(folder: Path, plan: Plan) -> Bench:
    empty = folder / "empty"
    empty.mkdir()
    return Bench(
        plan=plan,
        cores=Cores.available(),
        repository=mock_repository.write(folder / "models"),
        empty_repository=empty,
        tokenizer=folder / "tokenizer",
        say=lambda text: print(f"  {text}", file=sys.stderr, flush=True),
    )


def _run(bench: Bench, json_file: Path | None, *, check: bool) -> int:
    with bench.gateway() as gateway:
        rounds, all_doubts = _rounds(bench, gateway)
    about, versions = machine.describe(), machine.versions()
    found = report.summaries(rounds)
    print(report.conditions(bench.cores, about, versions))
    print(report.table(found))
    print(report.shares(rounds), end="")
    for number, lines in enumerate(all_doubts, start=1):
        for line in lines:
            print(f"round {number}: {line}")
    if json_file is not None:
        known = {
            "machine": about,
            "versions": versions,
            "cores": asdict(bench.cores),
            "plan": asdict(bench.plan),
        }
        json_file.write_text(report.document(rounds, all_doubts, known) + "\n", encoding="utf-8")
    return _check(rounds, all_doubts) if check else 0


def _check(rounds: list[Round], all_doubts: list[list[Doubt]]) -> int:
    """CPU time is judged in any case; the clock only where the machine was ours."""
    by_cpu = undoubted(rounds, all_doubts, by_clock=False) or rounds
    by_clock = undoubted(rounds, all_doubts, by_clock=True)
    missed = budgets.missed(report.summaries(by_cpu), by_clock=False)
    if by_clock:
        missed += budgets.missed(report.summaries(by_clock), by_clock=True)
    else:
        names = ", ".join(budgets.demanded(by_clock=True))
        print(f"not judged: {names}: every round is doubtful")
    print(f"missed: {', '.join(missed)}" if missed else "nothing that is demanded was missed")
    return MISSED if missed else 0


def _rounds(bench: Bench, gateway: ServerProcess) -> tuple[list[Round], list[list[Doubt]]]:
    rounds, all_doubts = [], []
    before = bench.canary()
    for number in range(1, bench.plan.rounds + 1):
        bench.say(f"round {number} of {bench.plan.rounds}")
        done = bench.round(gateway, alone=number <= bench.plan.rounds_alone)
        after = bench.canary()
        done.add_canary(before, after)
        rounds.append(done)
        all_doubts.append(doubts(before, done, after))
        before = after
    return rounds, all_doubts
