import pytest

from benchmarks.summary import Summary, percentile, slope


@pytest.mark.parametrize(
    ("percent", "expected"),
    [(0, 1), (1, 1), (50, 50), (50.1, 51), (99, 99), (99.9, 100), (100, 100)],
)
def test_percentile_is_the_nearest_rank(percent, expected):
    """A percentile is a measured value, in whatever order the values are."""

    assert percentile(list(range(100, 0, -1)), percent) == expected


def test_summary_is_median_and_range():
    """The mean is not used: one bad round does not move the median."""

    assert Summary.of([3.0, 100.0, 1.0]) == Summary(median=3.0, low=1.0, high=100.0)


def test_slope_ignores_constant_memory():
    """Memory in use without any stream is not attributed to the streams."""

    assert slope([(100, 51_000), (200, 52_000), (300, 53_000)]) == pytest.approx(10)
