"""The answers to 500 requests are those that were recorded.

After an intended change: `python -m tests.api.recorded.answers`, and review the difference.
"""

import json

import pytest

from tests.api.recorded.answers import FILE, recorded
from tests.api.recorded.requests import requests

pytestmark = pytest.mark.slow


async def test_answers_are_the_recorded_ones() -> None:
    """Status, headers and body, but for ids and times, and where a stream is cut into events."""
    expected = json.loads(FILE.read_text(encoding="utf-8"))
    found = await recorded()

    assert [*found] == [*expected]
    assert {name: found[name] for name in found if found[name] != expected[name]} == {}


def test_each_request_has_a_name_of_its_own() -> None:
    names = [each.name for each in requests()]

    assert len(names) == len(set(names))
    assert len(names) > 450
