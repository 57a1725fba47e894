"""Which requests are traced to a file: rate, count, and settings of models."""

from pathlib import Path

import pytest

from openai_frontend.config.trace_options import FileTraces, file_traces
from openai_frontend.tracing.trace_settings import TraceSettingsByModel

FILE = Path("/traces")


def settings(file: Path | None = FILE, **options: object) -> TraceSettingsByModel:
    texts = {f"trace-{name.replace('_', '-')}": [str(value)] for name, value in options.items()}
    start = {"trace-mode": ["triton"], "trace-level": ["TIMESTAMPS"], "trace-rate": ["1"]}
    if file is not None:
        start["trace-file"] = [str(file)]
    traces = file_traces({**start, **texts}, otlp=False)
    assert traces is not None
    return TraceSettingsByModel(traces)


def sampled(by_model: TraceSettingsByModel, model: str, requests: int) -> list[bool]:
    return [by_model.of(model).sample() for _ in range(requests)]


def test_rate_traces_every_second_request() -> None:
    assert sampled(settings(rate=2), "m", 5) == [False, True, False, True, False]


def test_count_ends_traces() -> None:
    """All models without settings of their own share it."""
    by_model = settings(count=2)

    assert sampled(by_model, "a", 1) + sampled(by_model, "b", 3) == [True, True, False, False]
    assert by_model.all.count == 0


def test_setting_of_a_model_does_not_change_others() -> None:
    by_model = settings(count=5)
    by_model.update("a", {"rate": 3, "count": 1})

    assert sampled(by_model, "a", 6) == [False, False, True, False, False, False]
    assert sampled(by_model, "b", 2) == [True, True]
    assert (by_model.of("a").count, by_model.of("b").count) == (0, 3)


def test_removed_setting_is_that_of_all_models() -> None:
    """And of all models that of the start; what remains to be counted is kept."""
    by_model = settings(rate=4, count=9)
    by_model.update(None, {"rate": 2, "count": 7})
    by_model.update("a", {"rate": 3})
    sampled(by_model, "b", 2)
    by_model.update(None, {"log_frequency": 5})
    a, b = by_model.of("a"), by_model.of("b")
    assert (a.rate, a.count, a.log_frequency) == (3, 6, 5)
    assert (b.rate, b.count) == (2, 6)
    by_model.update("a", {"rate": None})
    by_model.update(None, {"rate": None})

    assert by_model.of("a") is by_model.all
    assert by_model.all.rate == 4


@pytest.mark.parametrize(
    ("file", "changes", "reason"),
    [
        (FILE, {"level": 4, "rate": 0}, "sample rate must be non-zero"),
        (None, {"level": 4}, "trace file name is not given"),
    ],
)
def test_invalid_change_changes_nothing(
    file: Path | None, changes: dict[str, int], reason: str
) -> None:
    by_model = settings(file)
    before = by_model.all
    for model in (None, "m"):
        with pytest.raises(ValueError, match=reason):
            by_model.update(model, changes)

    assert by_model.all is before
    assert by_model.of("m") is before


def test_replaced_settings_are_marked() -> None:
    """They sample no further trace, so their files are complete."""
    by_model = settings()
    found = [by_model.all]
    for model in (None, "m", "m", None):
        by_model.update(model, {"log_frequency": 2} if model is None else {"rate": 3})
        found += [by_model.all, by_model.of("m")]
    by_model.update("m", {"rate": None})

    in_force = {id(by_model.all)}
    assert all(each.replaced is (id(each) not in in_force) for each in found)


def test_model_alone_can_be_traced() -> None:
    by_model = settings(level="OFF")
    before = by_model.enabled
    by_model.update("m", {"level": 4})

    assert (before, by_model.enabled) == (False, True)
    assert sampled(by_model, "m", 1) + sampled(by_model, "other", 1) == [True, False]


OPTIONS = [
    (
        {"trace-file": ["/traces"], "trace-level": ["TIMESTAMPS", "TENSORS"], "trace-rate": ["1"]},
        False,
        FileTraces(FILE, 12, 1, -1, 0),
    ),
    ({}, False, None),
    ({"trace-rate": ["5"]}, True, None),
    ({"trace-mode": ["opentelemetry"]}, False, None),
    ({"trace-mode": ["triton"]}, False, FileTraces(None, 0, 1000, -1, 0)),
    ({"trace-file": ["/traces"]}, False, FileTraces(FILE, 0, 1000, -1, 0)),
    (
        {"trace-file": ["/traces"], "trace-level": ["TIMESTAMPS", "OFF"], "trace-count": ["3"]},
        False,
        FileTraces(FILE, 0, 1000, 3, 0),
    ),
]


@pytest.mark.parametrize(("texts", "otlp", "expected"), OPTIONS, ids=str)
def test_options(texts: dict[str, list[str]], otlp: bool, expected: FileTraces | None) -> None:
    """Defaults are tritonserver's, and OFF wins over other levels."""
    assert file_traces(texts, otlp=otlp) == expected


@pytest.mark.parametrize(
    ("texts", "otlp", "reason"),
    [
        ({"trace-file": ["/x"]}, True, "trace-file: traces go to the collector"),
        ({"trace-mode": ["triton"]}, True, "trace-mode: traces go to the collector"),
        ({"trace-mode": ["opentelemetry"], "trace-file": ["/x"]}, False, "trace-file: traces go"),
        ({"trace-count": ["5"]}, False, "trace-count: needs trace-file"),
        ({"trace-log-frequency": ["5"]}, True, "trace-log-frequency: needs trace-file"),
    ],
)
def test_contradictions(texts: dict[str, list[str]], otlp: bool, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        file_traces(texts, otlp=otlp)
