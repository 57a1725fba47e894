"""Loads the gateway with the mock engine and prints CPU time, rates and latencies."""

import argparse
import resource
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import (
    aiperf,
    budgets,
    c_floor,
    completeness,
    hot_spots,
    machine,
    report,
    results,
)
from benchmarks.aiperf import NoWitness
from benchmarks.c_floor import NoCompiler
from benchmarks.client_process import ClientFailed
from benchmarks.measurement import Bench, Round
from benchmarks.noise import Doubt, doubts, undoubted
from benchmarks.plan import FULL, QUICK, Plan
from benchmarks.scenario import CLOSED_LOOP, LIVENESS, OPEN_LOOP, OPEN_SHARE, PACED, SCENARIOS
from benchmarks.server_process import ServerFailed, ServerProcess
from benchmarks.summary import Summary

# Exit codes: 0 is a run, 1 one that misses a demanded budget, 2 one that did not work
MISSED = 1
FAILED = 2

_DESCRIPTORS = 4096  # for 1,000 idle streams and all beside them, in client and server


@dataclass(frozen=True, slots=True)
class Run:
    """What all rounds brought."""

    rounds: list[Round]
    doubts: list[list[Doubt]]
    skipped: Mapping[str, str]
    witnesses: list[str]  # what aiperf measured, a line for each load


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code."""
    given = _parser().parse_args(arguments)
    plan = QUICK if given.quick else FULL
    if given.rounds is not None:
        plan = replace(plan, rounds=given.rounds)
    _raise_descriptor_limit()
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        bench, skipped = _bench(Path(folder), plan)
        try:
            if given.profile:
                for profile in hot_spots.profiles(bench):
                    print(f"{profile.title}: {profile.calls:.1f}\n{hot_spots.table(profile)}\n")
                return 0
            run = _run(bench, skipped, with_aiperf=aiperf.is_requested(given))
        except (ClientFailed, ServerFailed) as error:
            sys.stderr.write(f"benchmarks: {error}\n")
            return FAILED
        found = _tell(bench, run, json_file=given.json, folder=given.store)
    if problems := list(completeness.problems(found, run.skipped)):
        sys.stderr.writelines(f"benchmarks: {problem}\n" for problem in problems)
        return FAILED
    return _check(run) if given.check else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="one short round, in less than a minute"
    )
    parser.add_argument("--rounds", type=_positive, help="number of rounds (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    parser.add_argument(
        "--store",
        type=Path,
        metavar="FOLDER",
        nargs="?",
        const=results.FOLDER,
        help="write mock.json and mock.md to FOLDER (default: benchmarks/results)",
    )
    parser.add_argument(
        "--aiperf",
        action=argparse.BooleanOptionalAction,
        help="also drive each load once with aiperf (default: with --store)",
    )
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if a demanded budget is missed"
    )
    parser.add_argument(
        "--profile", action="store_true", help="show in which functions the server spends its time"
    )
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _raise_descriptor_limit() -> None:
    """What is started from here has the same limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _bench(folder: Path, plan: Plan) -> tuple[Bench, dict[str, str]]:
    """And what this machine cannot measure."""
    program, skipped = None, {}
    try:
        program = c_floor.build(folder)
    except NoCompiler as error:
        skipped[completeness.NO_C_FLOOR] = str(error)
    return Bench.prepare(folder, plan, c_floor=program, say=_say), skipped


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def _run(bench: Bench, skipped: Mapping[str, str], *, with_aiperf: bool) -> Run:
    with bench.gateway() as gateway:
        run = Run([], [], {**skipped, **bench.refused(gateway)}, [])
        _rounds(bench, gateway, run)
        if with_aiperf:
            run.witnesses.extend(_witnesses(bench, gateway, run))
    return run


def _witnesses(bench: Bench, gateway: ServerProcess, run: Run) -> Iterator[str]:
    """Each load that has a figure of aiperf's, once."""
    reason = aiperf.missing()
    if reason is not None:
        yield f"aiperf: skipped: {reason}"
        return
    ours = {name: each.median for name, each in report.summaries(run.rounds).items()}
    for each in (*SCENARIOS, CLOSED_LOOP, OPEN_LOOP, PACED, LIVENESS):
        if each.name in run.skipped or each.length == "request":
            continue  # CPU time alone, which aiperf does not measure
        rate = {"rate_per_s": OPEN_SHARE * ours["requests_per_s_closed"]}
        try:
            found = bench.witness(gateway, each, **(rate if each is OPEN_LOOP else {}))
        except NoWitness as error:
            yield f"aiperf: {each.title}: {error}"
        else:
            yield report.witness(each, found, ours)


def _rounds(bench: Bench, gateway: ServerProcess, run: Run) -> None:
    before = bench.canary()
    for number in range(1, bench.plan.rounds + 1):
        bench.say(f"round {number} of {bench.plan.rounds}")
        alone = number <= bench.plan.rounds_alone
        done = bench.round(gateway, alone=alone, skipped=run.skipped)
        after = bench.canary()
        done.add_canary(before, after)
        run.rounds.append(done)
        run.doubts.append(doubts(before, done, after))
        before = after


def _tell(
    bench: Bench, run: Run, *, json_file: Path | None, folder: Path | None
) -> dict[str, Summary]:
    known: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": machine.commit(),
        "machine": machine.describe(),
        "versions": machine.versions(),
        "cores": asdict(bench.cores),
        "plan": asdict(bench.plan),
    }
    found = report.summaries(run.rounds)
    notes = report.shares(run.rounds) + report.remarks(run.doubts, run.skipped)
    notes += "".join(f"{line}\n" for line in run.witnesses)
    print(report.conditions(known))
    print(report.table(found))
    print(notes, end="")
    document = report.document(run.rounds, run.doubts, run.skipped, known)
    document["aiperf"] = run.witnesses
    if json_file is not None:
        results.write_json(document, json_file)
    if folder is not None:
        about = f"{report.conditions(known)}\n{notes}".replace("\n", "  \n")
        results.store(folder, "mock", document, report.markdown(found, about))
    return found


def _check(run: Run) -> int:
    """CPU time is judged in any case; the clock only where the machine was ours."""
    by_cpu = undoubted(run.rounds, run.doubts, by_clock=False) or run.rounds
    by_clock = undoubted(run.rounds, run.doubts, by_clock=True)
    missed = budgets.missed(report.summaries(by_cpu), by_clock=False)
    if by_clock:
        missed += budgets.missed(report.summaries(by_clock), by_clock=True)
    else:
        names = ", ".join(budgets.demanded(by_clock=True))
        print(f"not judged: {names}: every round is doubtful")
    print(f"missed: {', '.join(missed)}" if missed else "nothing that is demanded was missed")
    return MISSED if missed else 0
