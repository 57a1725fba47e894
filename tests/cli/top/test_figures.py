import pytest
from prometheus_client import CollectorRegistry, Histogram

from openai_frontend.cli.top.figures import ModelFigures, figures
from openai_frontend.cli.top.reading import Reading
from openai_frontend.cli.top.screen import lines

NAME = "openai_frontend_time_to_first_token_seconds"


def reading(at_s, samples, **more):
    """Samples are (name, labels, value)."""
    by_name: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for name, labels, value in samples:
        by_name.setdefault(name, {})[tuple(sorted(labels.items()))] = value
    return Reading(at_s=at_s, samples=by_name, **more)


def seen(*seconds):
    """The samples of a histogram that saw these."""
    registry = CollectorRegistry()
    histogram = Histogram(NAME, "x", ["model"], buckets=(0.1, 0.2, 0.4), registry=registry)
    child = histogram.labels("m")
    for each in seconds:
        child.observe(each)
    return [
        (sample.name, sample.labels, sample.value)
        for family in registry.collect()
        for sample in family.samples
    ]


def only(earlier, now) -> ModelFigures:
    [model] = figures(earlier, now).models
    return model


def counted(value):
    return [("openai_frontend_output_tokens_total", {"model": "m"}, value)]


@pytest.mark.parametrize(
    ("before", "after", "rate"),
    [(100, 150, 25), (100, 100, 0), (100, 30, 15)],  # the last began again at zero
)
def test_a_rate(before, after, rate):
    """What was counted in between, by the seconds in between; over a restart too."""
    earlier = reading(10, counted(before), models=("m",))
    now = reading(12, counted(after), models=("m",))

    assert only(earlier, now).tokens_per_s == rate


def test_quantiles():
    """Those of what came in between alone, within a bucket by its share."""
    earlier = reading(0, seen(0.05, 0.05, 0.05), models=("m",))
    now = reading(1, seen(0.05, 0.05, 0.05, 0.15, 0.15, 0.3, 9.0), models=("m",))

    model = only(earlier, now)
    assert model.ttft_p50_s == pytest.approx(0.2)
    assert model.ttft_p99_s == 0.4  # beyond the last bound nothing is known
    assert only(now, now).ttft_p50_s is None


def test_requests_of_its_own():
    """What `top` asks itself is no traffic."""
    routes = {"/metrics": 9, "/v1/models": 9, "/health/ready": 9, "/v1/chat/completions": 4}
    samples = [
        ("openai_frontend_requests_total", {"route": route, "status": "200"}, value)
        for route, value in routes.items()
    ]

    assert figures(reading(0, []), reading(2, samples)).requests_per_s == 2


def test_engines():
    """vLLM's and TensorRT-LLM's queues and caches stand in the same columns."""
    samples = [
        ("vllm:num_requests_running", {"model": "a", "version": "1"}, 4),
        ("vllm:num_requests_waiting", {"model": "a", "version": "1"}, 2),
        ("vllm:kv_cache_usage_perc", {"model": "a", "version": "1"}, 0.5),
        ("nv_trt_llm_request_metrics", {"model": "b", "request_type": "waiting"}, 7),
        ("nv_trt_llm_request_metrics", {"model": "b", "request_type": "max"}, 8),
        ("nv_trt_llm_kv_cache_block_metrics", {"model": "b", "kv_cache_block_type": "max"}, 99),
        ("nv_trt_llm_kv_cache_block_metrics", {"model": "b", "kv_cache_block_type": "fraction"}, 1),
    ]
    now = reading(1, samples, models=("a",), status="ready")

    [first, second] = figures(now, now).models
    assert (first.engine_waiting, first.cache, first.state) == (2, 0.5, "ready")
    assert (second.engine_waiting, second.cache, second.state) == (7, 1, "")


def test_a_model_that_cannot_serve():
    """Its reason stands in place of the gateway's state."""
    now = reading(1, [], models=("m", "n"), status="not ready", unready={"m": "its engine died"})

    states = [model.state for model in figures(now, now).models]
    assert states == ["its engine died", "not ready"]


@pytest.mark.parametrize("width", range(1, 140, 7))
def test_narrow_terminals(width):
    """No line is wider than the terminal, and there are as many as it has."""
    names = tuple(f"organisation/model-{number}" for number in range(9))
    samples = [("openai_frontend_requests_running", {"model": name}, 1234) for name in names]
    now = reading(1, samples, models=names, status="ready")

    shown = lines(figures(now, now), "http://127.0.0.1:9000", width, 9)
    assert len(shown) == 9
    assert max(map(len, shown)) <= width
    assert shown[-1] == "and 5 more"[:width]


def test_what_goes_first():
    """Live answers and tokens stay longest, and the name is still to be read."""
    samples = [("openai_frontend_requests_running", {"model": "organisation/model"}, 2)]
    now = reading(1, samples, status="ready")

    heading, row = lines(figures(now, now), "here", 40)[-2:]
    assert heading.split() == ["model", "live", "tokens/s", "state"]
    assert row.startswith("organisatio")
    assert row.endswith("ready")
