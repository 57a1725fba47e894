import pytest

from openai_frontend.admission.queue import ServiceRateEstimator


def test_default_without_data():
    """One second, before any request has waited."""
    assert ServiceRateEstimator().retry_after_s(5, 100.0) == 1.0


def test_steady_queue():
    """The estimate is proportional to the requests ahead."""
    pace = ServiceRateEstimator()
    pace.begin(0.0)
    for at in range(1, 51):
        pace.moved(at * 0.5)

    assert pace.retry_after_s(8, 25.0) == pytest.approx(4.0)


def test_stuck_queue():
    """It is as slow as the time since it last moved, up to a minute."""
    pace = ServiceRateEstimator()
    pace.begin(0.0)
    pace.moved(0.5)

    assert pace.retry_after_s(2, 10.5) == pytest.approx(20.0)
    assert pace.retry_after_s(100, 10.5) == 60.0


def test_queue_that_has_not_moved_yet():
    """The estimate is the time since the first request began to wait."""
    pace = ServiceRateEstimator()
    pace.begin(10.0)

    assert pace.retry_after_s(3, 12.0) == pytest.approx(6.0)


def test_idle_time_does_not_count():
    pace = ServiceRateEstimator()
    pace.begin(0.0)
    pace.moved(1.0)
    pace.begin(1000.0)
    pace.moved(1001.0)

    assert pace.retry_after_s(3, 1001.0) == pytest.approx(3.0)
