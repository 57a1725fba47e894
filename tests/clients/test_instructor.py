"""instructor, in an environment of its own: every mode of a chat that is not Anthropic's."""

import re
from typing import Any

import pytest

from tests.clients.environments import Environment

pytestmark = [pytest.mark.engine, pytest.mark.slow]

WITHOUT_TOOLS = ["JSON", "JSON_SCHEMA", "MD_JSON"]
WITH_TOOLS = ["TOOLS", "TOOLS_STRICT", "PARALLEL_TOOLS"]


@pytest.fixture(scope="module")
def found(url: str) -> Any:
    """The object or error of each mode."""
    return Environment("sdks").ask("ask_instructor", url, *WITHOUT_TOOLS, *WITH_TOOLS)


@pytest.mark.parametrize("mode", WITHOUT_TOOLS)
def test_a_mode_gives_the_object(found, mode):
    """The answer is the object that the question describes."""
    assert found[mode] == {"name": "Alice", "age": 30}


@pytest.mark.parametrize("mode", WITH_TOOLS)
def test_a_mode_with_tools_is_refused_by_name(found, mode):
    """Tools come later: until then each such mode ends with an error that names them."""
    assert re.search(r"'tool(s|_choice)' is not supported", found[mode]["error"])
