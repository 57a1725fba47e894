"""A jump of the wall clock ends no wait and delays none: deadlines are taken from another clock."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import openai_frontend

PACKAGE = Path(openai_frontend.__file__).parent

# What tells the time of day. Who may: what is shown to people, and when a key ends
WALL_CLOCK = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today"}
MAY = {
    "auth/keys.py": "a key ends on a day",
    "auth/jwt_verifier.py": "a token ends at a time of day",
    "cli/keys.py": "a key ends on a day",
    "request_record.py": "the begin of a span",
    "engines/vllm/stats.py": "when adapters ran, as vLLM tells it",
    "models/loader.py": "`created` of a model",
    "prompting/template_environment.py": "templates write the date",
    "serving/output/completion_job.py": "`created` of an answer",
    "serving/scoring.py": "`created` of an answer",
}


@functools.cache
def users() -> frozenset[tuple[str, str]]:
    """Module and name, for each attribute of a module, and each name out of `time`."""
    return frozenset(_users())


def _users() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                yield path.relative_to(PACKAGE).as_posix(), f"{node.value.id}.{node.attr}"
            elif isinstance(node, ast.ImportFrom) and node.module == "time":
                for name in node.names:
                    yield path.relative_to(PACKAGE).as_posix(), f"time.{name.name}"


def test_who_asks_for_the_time_of_day() -> None:
    """Nobody who waits for anything."""
    asking = {module for module, name in users() if name in WALL_CLOCK}

    assert asking == MAY.keys()


def test_who_asks_for_a_clock_that_never_jumps() -> None:
    """The look above sees the names of clocks at all, in both ways to import one."""
    names = {name for _, name in users()}

    assert {"time.monotonic", "time.perf_counter"} <= names
