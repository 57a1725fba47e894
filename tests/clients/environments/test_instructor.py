"""instructor, in its own environment: every chat mode that is not for Anthropic."""

from typing import Any

import pytest

from tests.clients.environments import Environment

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MODES = ["JSON", "JSON_SCHEMA", "MD_JSON", "TOOLS", "TOOLS_STRICT"]


@pytest.fixture(scope="module")
def found(url: str) -> Any:
    """The object or error of each mode."""
    return Environment("sdks").ask("ask_instructor", url, *MODES, "PARALLEL_TOOLS")


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_returns_the_object(found, mode):
    """The result is the object that the question describes."""
    assert found[mode] == {"name": "Alice", "age": 30}


def test_parallel_tools(found):
    """In this mode the model decides whether and how often to call; each call is an object."""
    assert found["PARALLEL_TOOLS"] == [{"city": "Paris"}, {"city": "London"}]
