"""SageMaker's sessions: bounded in number and time, and each tenant's own."""

import pytest

from openai_frontend.errors import InvalidRequest, RateLimited
from openai_frontend.routers.stateful_sessions import StatefulSessions


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def __call__(self) -> float:
        return self.time_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_session_expires(clock: Clock) -> None:
    """Its lifetime starts when it is opened, and use does not extend it."""
    sessions = StatefulSessions(10, now_s=clock)
    id = sessions.open("a")
    clock.time_s = 9
    sessions.require(id, "a")
    clock.time_s = 10

    with pytest.raises(InvalidRequest, match=f"session not found: '{id}'"):
        sessions.require(id, "a")


def test_session_of_another_tenant_is_unknown(clock: Clock) -> None:
    sessions = StatefulSessions(10, now_s=clock)
    id = sessions.open("a")

    with pytest.raises(InvalidRequest, match="session not found"):
        sessions.close(id, "b")
    sessions.close(id, "a")
    with pytest.raises(InvalidRequest, match="session not found"):
        sessions.close(id, "a")


def test_key_at_its_limit_does_not_stop_others(clock: Clock) -> None:
    """It may open sessions again when one has been closed or has expired."""
    sessions = StatefulSessions(10, max_of_key=2, now_s=clock)
    ids = [sessions.open("a") for _ in range(2)]
    clock.time_s = 4
    with pytest.raises(RateLimited, match="The key has 2 open sessions") as refused:
        sessions.open("a")
    sessions.open("b")
    sessions.close(ids[0], "a")
    sessions.open("a")
    clock.time_s = 10
    sessions.open("a")

    assert refused.value.retry_after_s == 6


def test_server_forgets_expired_sessions_of_all_tenants(clock: Clock) -> None:
    """Also of tenants that never come back. Without keys, only the server's limit counts."""
    sessions = StatefulSessions(10, max_sessions=3, max_of_key=1, now_s=clock)
    sessions.open("gone")
    sessions.open("")
    sessions.open("")
    with pytest.raises(RateLimited, match="The server has 3 open sessions"):
        sessions.open("")
    clock.time_s = 10
    sessions.open("a")

    assert list(sessions._ends) == ["a"]


def test_long_ids_are_cut_in_messages(clock: Clock) -> None:
    with pytest.raises(InvalidRequest) as refused:
        StatefulSessions(10, now_s=clock).require("x" * 10_000, "a")

    assert len(refused.value.message) < 200
