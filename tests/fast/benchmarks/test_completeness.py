from benchmarks import completeness
from benchmarks.figures import C_FLOOR_FIGURES, FIGURES
from benchmarks.summary import Summary

COMPLETE = {figure.name: Summary.of([4.0]) for figure in FIGURES}


def test_complete_run_has_no_problem():
    """Each figure is measured, and positive."""

    assert list(completeness.problems(COMPLETE, {})) == []


def test_absent_figure_is_a_problem():
    found = {name: value for name, value in COMPLETE.items() if name != "start_up_s"}

    assert list(completeness.problems(found, {})) == ["start_up_s was not measured"]


def test_skipped_scenario_has_no_figures():
    """A figure that it has nevertheless is a problem; so is the floor in C without a compiler."""

    skipped = {"tools": "HTTP 400", "floor in C": "no compiler"}
    left_out = {figure.name for figure in FIGURES if figure.scenario == "tools"}
    left_out |= {figure.name for figure in C_FLOOR_FIGURES}
    found = {name: value for name, value in COMPLETE.items() if name not in left_out}

    assert left_out
    assert list(completeness.problems(found, skipped)) == []
    assert list(completeness.problems(COMPLETE, skipped)) == [
        f"{name} was measured" for name in sorted(left_out)
    ]


def test_impossible_values_are_problems():
    """No figure is zero, and an engine of 4 tokens per step sends chunks of about 4."""

    values = {"start_up_s": 0.0, "tokens_per_chunk_64": 65.0, "tokens_per_chunk_64_by_4": 3.0}
    found = COMPLETE | {name: Summary.of([value]) for name, value in values.items()}

    assert sorted(completeness.problems(found, {})) == [
        f"{name} is {value:g}" for name, value in values.items()
    ]
