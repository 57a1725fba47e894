import pytest

from openai_frontend.admission.wait_queue import ServiceRateEstimator


def test_nothing_is_known():
    """Who is refused before anybody has waited is told to come again in a second."""
    assert ServiceRateEstimator().retry_after_s(5, 100.0) == 1.0


def test_a_steady_queue():
    """So many times the time from one to the next."""
    pace = ServiceRateEstimator()
    pace.begin(0.0)
    for at in range(1, 51):
        pace.moved(at * 0.5)

    assert pace.retry_after_s(8, 25.0) == pytest.approx(4.0)


def test_a_queue_that_stands_still():
    """As slow as the time since it last moved; no more than a minute is told of."""
    pace = ServiceRateEstimator()
    pace.begin(0.0)
    pace.moved(0.5)

    assert pace.retry_after_s(2, 10.5) == pytest.approx(20.0)
    assert pace.retry_after_s(100, 10.5) == 60.0


def test_a_first_wait():
    """Before it has moved at all, the time that it has stood is what is known."""
    pace = ServiceRateEstimator()
    pace.begin(10.0)

    assert pace.retry_after_s(3, 12.0) == pytest.approx(6.0)


def test_an_idle_time_between():
    """The time in which nobody waited is none that anybody waited for."""
    pace = ServiceRateEstimator()
    pace.begin(0.0)
    pace.moved(1.0)
    pace.begin(1000.0)
    pace.moved(1001.0)

    assert pace.retry_after_s(3, 1001.0) == pytest.approx(3.0)
