"""How often, and after which waits."""

from openai_frontend.models.supervisor import RestartBackoff


def test_each_wait_is_twice_as_long():
    """1 s before the first start, doubling to 60 s."""
    restarts = RestartBackoff()

    waits = [restarts.next_delay_s(0.0, max_restarts=9, window_s=600) for _ in range(9)]

    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_no_more_than_the_limit():
    """Where as many starts count there is no further one; 0 allows none."""
    restarts = RestartBackoff()
    assert [restarts.next_delay_s(0.0, max_restarts=2, window_s=600) for _ in range(3)] == [
        1,
        2,
        None,
    ]
    assert RestartBackoff().next_delay_s(0.0, max_restarts=0, window_s=600) is None


def test_starts_outside_the_window_do_not_count():
    """An engine that dies once a day is started again each time, after the shortest wait."""
    restarts = RestartBackoff()

    waits = [
        restarts.next_delay_s(now_s, max_restarts=1, window_s=600)
        for now_s in (0.0, 599.0, 600.0, 1200.0)
    ]

    assert waits == [1, None, 1, 1]
