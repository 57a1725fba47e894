import pytest

from benchmarks.summary import Summary, moved, percentile, slope


@pytest.mark.parametrize(
    ("percent", "expected"),
    [(0, 1), (1, 1), (50, 50), (50.1, 51), (99, 99), (99.9, 100), (100, 100)],
)
def test_a_percentile_is_the_nearest_rank(percent, expected):
    """A percentile is a value that was measured, in whatever order it was."""

    assert percentile(list(range(100, 0, -1)), percent) == expected


def test_nothing_has_no_percentile():
    """No value stands in for what was not measured."""

    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_a_summary_is_median_and_range():
    """The mean plays no part: one bad round does not move the median."""

    assert Summary.of([3.0, 100.0, 1.0]) == Summary(median=3.0, low=1.0, high=100.0)


def test_the_slope_leaves_out_what_does_not_grow():
    """Memory that is there without any stream is not charged to the streams."""

    assert slope([(100, 51_000), (200, 52_000), (300, 53_000)]) == pytest.approx(10)


@pytest.mark.parametrize(("before", "after"), [(8, 10), (10, 8)])
def test_movement_has_no_direction(before, after):
    """Faster and slower by the same factor are the same movement."""

    assert moved(before, after) == pytest.approx(0.25)
