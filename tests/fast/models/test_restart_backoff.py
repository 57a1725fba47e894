"""The number and delays of restarts."""

from openai_frontend.models.supervisor import RestartBackoff


def test_delays_double():
    """From 1 s before the first restart up to 60 s."""
    restarts = RestartBackoff()

    waits = [restarts.next_delay_s(0.0, max_restarts=9, window_s=600) for _ in range(9)]

    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_limit():
    """No restart beyond the limit; 0 allows none."""
    restarts = RestartBackoff()
    assert [restarts.next_delay_s(0.0, max_restarts=2, window_s=600) for _ in range(3)] == [
        1,
        2,
        None,
    ]
    assert RestartBackoff().next_delay_s(0.0, max_restarts=0, window_s=600) is None


def test_window():
    """An engine that dies once a day is always restarted after the minimum delay."""
    restarts = RestartBackoff()

    waits = [
        restarts.next_delay_s(now_s, max_restarts=1, window_s=600)
        for now_s in (0.0, 599.0, 600.0, 1200.0)
    ]

    assert waits == [1, None, 1, 1]
