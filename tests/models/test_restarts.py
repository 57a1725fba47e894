"""How often, and after which waits."""

from openai_frontend.models.restarts import Restarts


def test_each_wait_is_twice_as_long():
    """1 s before the first start, doubling to 60 s."""
    restarts = Restarts()

    waits = [restarts.begin(0.0, most=9, window_s=600) for _ in range(9)]

    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_no_more_than_the_limit():
    """Where as many starts count there is no further one; 0 allows none."""
    restarts = Restarts()
    assert [restarts.begin(0.0, most=2, window_s=600) for _ in range(3)] == [1, 2, None]
    assert Restarts().begin(0.0, most=0, window_s=600) is None


def test_starts_outside_the_window_do_not_count():
    """An engine that dies once a day is started again each time, after the shortest wait."""
    restarts = Restarts()

    waits = [restarts.begin(now_s, most=1, window_s=600) for now_s in (0.0, 599.0, 600.0, 1200.0)]

    assert waits == [1, None, 1, 1]
