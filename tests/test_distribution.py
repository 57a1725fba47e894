"""The distribution of the tests over xdist's workers."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests import distribution


def test_what_starts_engines_is_in_one_worker():
    """By its folder or by its mark; other files are on their own."""
    with_engines = (
        "tests/vllm/test_engine.py",
        "tests/backends/test_api.py",
        "tests/api/test_openai_sdk.py",
    )

    assert {distribution.scope(file) for file in with_engines} == {"engine"}
    assert distribution.scope("tests/unit/test_sse.py") == "tests/unit/test_sse.py"


@pytest.mark.parametrize(
    ("arguments", "keyword", "parallel"),
    [
        (["tests"], "", True),
        (["tests/unit"], "", True),
        (["tests/unit", "tests/unit/test_sse.py"], "", True),
        (["tests/unit/test_sse.py", "tests/unit/test_sse.py::test_any"], "", False),
        (["tests"], "name", False),
    ],
)
def test_few_tests_run_without_workers(arguments, keyword, parallel):
    config: Any = SimpleNamespace(args=arguments, option=SimpleNamespace(keyword=keyword))

    assert bool(distribution.pytest_xdist_auto_num_workers(config)) == parallel
