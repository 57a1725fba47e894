"""Answers each case of the corpus by random walks through its grammar."""

import multiprocessing
import os
import resource
from collections.abc import Iterator, Sequence
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.request.sampling import Constraint
from scripts.constraint_corpus.cases import Case
from scripts.constraint_corpus.outcome import Answer, Outcome, judged, refused
from scripts.constraint_corpus.walk import Grammars
from tests.vllm.calls import calls_of
from tests.vllm.constrained_answers import held, read

ANSWERS = 3  # of each case
CPU_S = 8  # for each case: as the gateway's own limit for a grammar
_FAMILY = "hermes"


def walk_all(corpus: Sequence[Case], processes: int) -> Iterator[Outcome]:
    """Outcomes as they come."""
    context = multiprocessing.get_context("spawn")  # torch has threads
    with context.Pool(processes) as pool:
        yield from pool.imap_unordered(walk, corpus, chunksize=16)


def walk(case: Case) -> Outcome:
    """The outcome of one case, found in a fork that may take too long."""
    grammars = _grammars()
    ours, theirs = multiprocessing.Pipe(duplex=False)
    with ours:
        with theirs:
            if not (pid := os.fork()):
                _answer(case, grammars, theirs)
        try:
            outcome: Outcome = ours.recv()
        except EOFError:
            outcome = refused(case, f"compiling it takes more than {CPU_S} s")
        os.waitpid(pid, 0)
    return outcome


@cache
def _grammars() -> Grammars:
    return Grammars()


def _answer(case: Case, grammars: Grammars, reply: Connection) -> None:
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # xgrammar's warnings
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
        reply.send(outcome_of(case, grammars))
    finally:
        os._exit(0)


def outcome_of(case: Case, grammars: Grammars) -> Outcome:
    """The outcome of one case."""
    try:
        given, walk = _accepted(case, grammars)
    except (InvalidRequest, ValueError) as error:
        return refused(case, str(getattr(error, "message", error)))
    try:
        answers = [_read(case, given, walk.answer(seed)) for seed in range(ANSWERS)]
    except ValueError as stuck:
        return Outcome(case, "finding", str(stuck))
    return judged(case, answers)


def _accepted(case: Case, grammars: Grammars) -> tuple[Constraint, Any]:
    """The constraint that the engine accepts: the request's own, or one that it falls back to."""
    given = held(_FAMILY, case.tools()) if case.called else held(_FAMILY, **case.fields())
    structured = given.structured
    while True:
        assert structured is not None
        try:
            return given, grammars.walk(structured)
        except ValueError:
            if given.fallback is None or not given.fallback.after(structured, None):
                raise
        current = given.fallback.current
        structured = None if current is None else current[0]


def _read(case: Case, given: Constraint, answer: Answer) -> Answer:
    """The arguments of a call, whose end belongs to the grammar too."""
    if not case.called or not answer.finished:
        return answer
    calls = calls_of(read(_FAMILY, case.tools(), given, answer.text))
    if len(calls) != 1:
        raise ValueError(f"not one call: {answer.text[:200]!r}")
    return Answer(calls[0][1], finished=True)
