"""instructor, in an environment of its own: every mode of a chat that is not Anthropic's."""

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
def test_a_mode_gives_the_object(found, mode):
    """The answer is the object that the question describes."""
    assert found[mode] == {"name": "Alice", "age": 30}


def test_parallel_tools(found):
    """This mode leaves it to the model whether it calls, and how often: each call is an object."""
    assert found["PARALLEL_TOOLS"] == [{"city": "Paris"}, {"city": "London"}]
