"""A jump of the wall clock neither ends nor delays a wait: deadlines use a monotonic clock."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import openai_frontend

PACKAGE = Path(openai_frontend.__file__).parent

# Functions that read the wall clock; MAY lists the modules that may use them, with the reason
WALL_CLOCK = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today"}
MAY = {
    "auth/api_keys.py": "a key ends on a day",
    "auth/jwt_verifier.py": "a token ends at a time of day",
    "cli/keys.py": "a key ends on a day",
    "auth/redis_limits.py": "Unix time at the end of a window; waits are at most a minute",
    "request_context/record.py": "the begin of a span",
    "routers/invocations.py": "when a session of SageMaker ends",
    "engines/kv_events.py": "when blocks changed, as vLLM tells it",
    "engines/vllm/conversion.py": "when a request arrived, as vLLM tells its engine",
    "engines/vllm/stats.py": "when adapters ran, as vLLM tells it",
    "models/loader.py": "`created` of a model",
    "prompting/template_environment.py": "templates write the date",
    "serving/dialects/responses/response_object.py": "`completed_at` of a response",
    "serving/output/completion_job.py": "`created` of an answer",
    "serving/classification.py": "`created` of an answer",
    "serving/pooling_tasks.py": "`created` of an answer",
    "serving/scoring.py": "`created` of an answer",
}


@functools.cache
def users() -> frozenset[tuple[str, str]]:
    """Return module and name for each attribute access on a name and each import from `time`."""
    return frozenset(_users())


def _users() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                yield path.relative_to(PACKAGE).as_posix(), f"{node.value.id}.{node.attr}"
            elif isinstance(node, ast.ImportFrom) and node.module == "time":
                for name in node.names:
                    yield path.relative_to(PACKAGE).as_posix(), f"time.{name.name}"


def test_only_the_listed_modules_read_the_wall_clock() -> None:
    """None of them waits for anything."""
    asking = {module for module, name in users() if name in WALL_CLOCK}

    assert asking == MAY.keys()


def test_the_search_finds_monotonic_clocks() -> None:
    """The search above sees clocks at all, with both ways of importing one."""
    names = {name for _, name in users()}

    assert {"time.monotonic", "time.perf_counter"} <= names
