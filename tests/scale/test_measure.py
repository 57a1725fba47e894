"""A short form of `make bench-scale`."""

import pytest

from benchmarks.scale import measure

pytestmark = pytest.mark.slow


def test_sessions_find_their_prefixes():
    """By session, a router reaches what one cache would, besides the system prompts that each
    gateway computes once; round robin does not. Gateways share the conversations.
    """
    plan = measure.Plan(conversations=12, turns=5)
    sessions, spread = "HAProxy, by session", "HAProxy, round robin"

    found = measure.run(plan, [sessions, spread], [])

    best = found[measure.ONE_CACHE].cached_share
    assert best > 0.5
    assert found[sessions].cached_share > 0.75 * best
    assert found[spread].cached_share < found[sessions].cached_share
    assert found[spread].most_requests < 1.1
    assert found[sessions].most_requests < 2
    assert sessions in measure.table(plan, found)
