"""`make check-constraints`: answers the corpus with the demo model and validates the answers."""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.constraints.cases import Case, sample
from tests.constraints.cases import cases as corpus_of
from tests.constraints.model_run import answer_all, write_repository
from tests.constraints.outcome import Outcome
from tests.constraints.report import findings, report
from tests.constraints.walk_run import walk_all
from tests.gateway_process import ROOT, GatewayProcess

PAGE = ROOT / "docs" / "constraint-corpus.md"
_PROGRESS = 500  # outcomes between lines


def main() -> int:
    options = _options()
    corpus = sample(corpus_of(options.seed), options.every)
    begun_s = time.monotonic()
    run = _walked if options.walk else _answered
    outcomes = run(corpus)
    minutes = max(1, round((time.monotonic() - begun_s) / 60))
    kind = "random walks" if options.walk else "the demo model"
    ran = f"seed {options.seed}, {len(corpus)} cases, {minutes} minutes with {kind}"
    problems = findings(outcomes)
    print("\n".join(problems))
    order = {each.key: number for number, each in enumerate(corpus)}
    page = report(sorted(outcomes, key=lambda each: order[each.case.key]), ran)
    if options.every == 1 and not options.walk:
        PAGE.write_text(page, encoding="utf-8")
    print(page.partition("## Results")[2])
    print(f"{ran}: {len(problems)} findings")
    return 1 if problems else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make check-constraints", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, help="take each n-th pattern and schema")
    parser.add_argument("--walk", action="store_true", help="random walks instead of a model")
    return parser.parse_args()


def _walked(corpus: Sequence[Case]) -> list[Outcome]:
    return _counted(walk_all(corpus, processes=2))


def _answered(corpus: Sequence[Case]) -> list[Outcome]:
    with tempfile.TemporaryDirectory() as folder:
        repository = write_repository(Path(folder) / "models")
        with GatewayProcess(repository, Path(folder) / "log") as gateway:
            gateway.wait_until_ready()
            return asyncio.run(_collected(gateway.url, corpus))


async def _collected(url: str, corpus: Sequence[Case]) -> list[Outcome]:
    done = []
    async for outcome in answer_all(url, corpus):
        done.append(outcome)
        _show_progress(len(done))
    return done


def _counted(outcomes: Iterable[Outcome]) -> list[Outcome]:
    done: list[Outcome] = []
    for outcome in outcomes:
        done.append(outcome)
        _show_progress(len(done))
    return done


def _show_progress(cases: int) -> None:
    if cases % _PROGRESS == 0:
        print(f"{cases} cases", flush=True)


if __name__ == "__main__":
    sys.exit(main())
