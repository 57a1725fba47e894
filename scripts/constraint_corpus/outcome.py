"""What becomes of a case: enforced, refused with a reason, or a finding."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scripts.constraint_corpus.cases import Case

Kind = Literal["enforced", "refused", "unjudged", "finding"]

VALUE_ENDED = "the value ended, the answer did not"
_SPACES = re.compile(r"[ \t\r\n]{3,}")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*(?:"|$)', re.DOTALL)
_NAME = re.compile(r"'[^']*'")


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, or what a limit on its length left of it."""

    text: str
    finished: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one case."""

    case: Case
    kind: Kind
    detail: str = ""  # the reason or the finding
    cut: int = 0  # answers that the length limit cut within a value without a bound


class Record:
    """Outcomes in a file of JSON lines, so that a run which was stopped can go on."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def outcomes(self, corpus: Iterable[Case]) -> list[Outcome]:
        """Those of the corpus's cases that are in the file."""
        if self._path is None or not self._path.exists():
            return []
        cases = {case.key: case for case in corpus}
        lines = map(json.loads, self._path.read_text(encoding="utf-8").splitlines())
        kept = [(tuple(line["key"]), line["outcome"]) for line in lines]
        return [Outcome(cases[key], *outcome) for key, outcome in kept if key in cases]

    def add(self, outcome: Outcome) -> None:
        if self._path is None:
            return
        fields = [outcome.kind, outcome.detail, outcome.cut]
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": outcome.case.key, "outcome": fields}) + "\n")


def refused(case: Case, reason: str) -> Outcome:
    """A schema that need not be enforced completely is never refused by an engine."""
    return Outcome(case, "refused", reason)


def judged(case: Case, answers: Iterable[Answer]) -> Outcome:
    """The outcome of a case that has been answered."""
    cut, unjudged = 0, ""
    for answer in answers:
        cut += not answer.finished
        problem = (
            case.violation(answer.text) if answer.finished else _cut_problem(case, answer.text)
        )
        if problem.startswith("no validator"):
            unjudged = problem
        elif problem:
            return Outcome(case, "finding", problem)
    return Outcome(case, "unjudged" if unjudged else "enforced", unjudged, cut)


def _cut_problem(case: Case, text: str) -> str:
    """Why an answer that the limit cut should have ended; empty if it is only long."""
    if case.place == "structured_outputs.regex":
        return ""
    value = text[text.find("{") :] if "{" in text else text
    if _SPACES.search(_STRING.sub('""', value)):
        return f"white space runs: {text[:200]!r}"
    try:
        json.JSONDecoder().raw_decode(value)
    except ValueError:
        return ""
    return f"{VALUE_ENDED}: {text[:200]!r}" if "{" in value else ""


def reason_class(message: str) -> str:
    """A refusal without paths, the client's own texts and numbers."""
    reason = message.rpartition("': ")[2] if message.startswith("Invalid") else message
    reason = reason.rpartition(": ")[2] or reason
    reason = _NAME.sub(lambda found: found[0] if found[0][1:-1].isalpha() else "'...'", reason)
    return re.sub(r"\d+", "N", reason).strip(" .")[:90]
