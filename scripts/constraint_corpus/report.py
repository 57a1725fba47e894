"""The report on the corpus, which `make check-constraints` writes to the documentation."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence

from scripts.constraint_corpus.cases import PATTERN_PLACES, SCHEMA_PLACES
from scripts.constraint_corpus.outcome import Kind, Outcome, reason_class

_HEAD = """\
# The corpus of constraints

`make check-constraints` writes this page. It sends {patterns} patterns and {schemas} JSON schemas
to a gateway with the demo model, each in several places of a request, and validates each answer
with `jsonschema` and `regex`, independently of the grammars. The schemas are forms of zod 4,
pydantic 2, OpenAPI 3.1 documents and MCP servers, every keyword of the drafts 4 to 2020-12 alone
and in pairs, random schemas, and JSON Schema's published test suite. Many are invalid or
contradictory on purpose. Each case is answered at temperatures 0.1 and 1, with at most 100 tokens.

Enforced: each answer validated, or the length limit cut it within a value (last column). No
validator: `regex` cannot read the pattern. Wrong: anything else.

Last run: {ran}.

"""
_PLACES = """
## Results

| from | place | cases | enforced | refused | no validator | wrong | answers cut |
|---|---|--:|--:|--:|--:|--:|--:|
"""
_REASONS = """
## Refusals

| reason | cases |
|---|--:|
"""
_KINDS: tuple[Kind, ...] = ("enforced", "refused", "unjudged", "finding")
_MAX_REASONS = 20


def report(outcomes: Sequence[Outcome], ran: str) -> str:
    """The page."""
    named = {(each.case.group == "patterns", each.case.group, each.case.name) for each in outcomes}
    patterns = sum(pattern for pattern, _, _ in named)
    head = _HEAD.format(patterns=patterns, schemas=len(named) - patterns, ran=ran)
    return f"{head}{_PLACES.lstrip()}{_results(outcomes)}{_REASONS}{_refusals(outcomes)}"


def _results(outcomes: Sequence[Outcome]) -> str:
    counts = Counter((each.case.group, each.case.place, each.kind) for each in outcomes)
    cut: Counter[tuple[str, str]] = Counter()
    for each in outcomes:
        cut[each.case.group, each.case.place] += each.cut
    rows = []
    for group in dict.fromkeys(each.case.group for each in outcomes):
        for place in PATTERN_PLACES if group == "patterns" else SCHEMA_PLACES:
            kinds = [counts[group, place, kind] for kind in _KINDS]
            if total := sum(kinds):
                rows.append(_row(group, place, total, *kinds, cut[group, place]))
    return "".join(rows)


def _refusals(outcomes: Iterable[Outcome]) -> str:
    counts = Counter(reason_class(each.detail) for each in outcomes if each.kind == "refused")
    shown = counts.most_common(_MAX_REASONS)
    rest = counts.total() - sum(count for _, count in shown)
    rows = [_row(reason.replace("|", "\\|"), count) for reason, count in shown]
    return "".join(rows) + (_row("others", rest) if rest else "")


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |\n"


def is_finding(outcome: Outcome) -> bool:
    """Whether the case is neither enforced nor refused with reason: the schema of a function that
    is not strict is never a reason to refuse a request.
    """
    if outcome.kind == "refused":
        return outcome.case.place == "tool, not strict"
    return outcome.kind == "finding"


def finding(outcome: Outcome) -> str:
    """The finding for people."""
    case = outcome.case
    return (
        f"{case.group}: {case.name}: {case.place}: {outcome.detail}\n"
        f"    {case.pattern or json.dumps(case.schema)}"
    )
