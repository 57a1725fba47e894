"""`make check-constraints`: answers the corpus with the demo model and validates the answers."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from scripts.constraint_corpus.cases import Case, half, sample
from scripts.constraint_corpus.cases import cases as corpus_of
from scripts.constraint_corpus.model_run import answer_all, write_repository
from scripts.constraint_corpus.outcome import Outcome, Record
from scripts.constraint_corpus.report import finding, is_finding, report
from scripts.constraint_corpus.walk_run import walk_all
from tests.gateway_process import ROOT, GatewayProcess

PAGE = ROOT / "docs" / "constraint-corpus.md"
_PROGRESS = 200  # outcomes between lines


def main() -> int:
    options = _options()
    corpus = sample(corpus_of(options.seed), options.every)
    corpus = half(corpus) if options.half else corpus
    corpus = [each for each in corpus if options.name in f"{each.group}: {each.name}"]
    # A run that is stopped has answered what must be enforced.
    corpus.sort(key=lambda each: each.place.endswith("not strict"))
    record = Record(options.record)
    outcomes = record.outcomes(corpus)
    known = {each.case.key for each in outcomes}
    with suppress(KeyboardInterrupt):
        if left := [each for each in corpus if each.key not in known]:
            _run(left, outcomes, record, walk=options.walk)
    kind = "random walks" if options.walk else "the demo model"
    ran = f"seed {options.seed}, {len(outcomes)} of {len(corpus)} cases, with {kind}"
    ran += " (`ARGS=--half`)" if options.half else ""
    order = {each.key: number for number, each in enumerate(corpus)}
    page = report(sorted(outcomes, key=lambda each: order[each.case.key]), ran)
    if options.every == 1 and not options.name and not options.walk:
        PAGE.write_text(page, encoding="utf-8")
    print(page.partition("## Results")[2])
    problems = sum(is_finding(each) for each in outcomes)
    print(f"{ran}: {problems} findings")
    return 1 if problems or len(outcomes) < len(corpus) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make check-constraints", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, help="take each n-th pattern and schema")
    parser.add_argument("--half", action="store_true", help=str(half.__doc__))
    parser.add_argument("--name", default="", help="take those whose name contains this text")
    parser.add_argument("--walk", action="store_true", help="random walks instead of a model")
    parser.add_argument("--record", type=Path, help="keep outcomes in this file; skip those in it")
    return parser.parse_args()


def _run(corpus: Sequence[Case], outcomes: list[Outcome], record: Record, *, walk: bool) -> None:
    """Adds the outcomes as they come, until the run is interrupted."""
    if walk:
        for outcome in walk_all(corpus, processes=2):
            _add(outcome, outcomes, record)
        return
    with tempfile.TemporaryDirectory() as folder:
        repository = write_repository(Path(folder) / "models")
        with GatewayProcess(repository, Path(folder) / "log") as gateway:
            gateway.wait_until_ready()
            asyncio.run(_answer(gateway.url, corpus, outcomes, record))


async def _answer(
    url: str, corpus: Sequence[Case], outcomes: list[Outcome], record: Record
) -> None:
    async for outcome in answer_all(url, corpus):
        _add(outcome, outcomes, record)


def _add(outcome: Outcome, outcomes: list[Outcome], record: Record) -> None:
    outcomes.append(outcome)
    record.add(outcome)
    if is_finding(outcome):
        print(finding(outcome), flush=True)
    if len(outcomes) % _PROGRESS == 0:
        print(f"{len(outcomes)} cases", flush=True)


if __name__ == "__main__":
    sys.exit(main())
