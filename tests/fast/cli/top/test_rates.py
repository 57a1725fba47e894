import pytest
from prometheus_client import CollectorRegistry, Histogram

from openai_frontend.cli.top.rates import ModelStats, compute_row, compute_stats
from openai_frontend.cli.top.scrape import Scrape, merged

NAME = "openai_frontend_time_to_first_token_seconds"


def scraped(at_s, samples, **more):
    """Samples are (name, labels, value)."""
    by_name: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for name, labels, value in samples:
        by_name.setdefault(name, {})[tuple(sorted(labels.items()))] = value
    return Scrape(at_s=at_s, samples=by_name, **more)


def observed(*seconds):
    """The samples of a histogram with these observations."""
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


def only(earlier, now) -> ModelStats:
    [model] = compute_stats(earlier, now).models
    return model


def output_tokens(value):
    return [("openai_frontend_output_tokens_total", {"model": "m"}, value)]


@pytest.mark.parametrize(
    ("before", "after", "rate"),
    [(100, 150, 25), (100, 100, 0), (100, 30, 15)],  # the last one is a reset to zero
)
def test_rate_is_the_increase_per_second(before, after, rate):
    """A counter that fell was reset by a restart, and counts from zero."""
    earlier = scraped(10, output_tokens(before), models=("m",))
    now = scraped(12, output_tokens(after), models=("m",))

    assert only(earlier, now).tokens_per_s == rate


def test_quantiles_cover_only_observations_between_scrapes():
    """A quantile is interpolated within its bucket."""
    earlier = scraped(0, observed(0.05, 0.05, 0.05), models=("m",))
    now = scraped(1, observed(0.05, 0.05, 0.05, 0.15, 0.15, 0.3, 9.0), models=("m",))

    model = only(earlier, now)
    assert model.ttft_p50_s == pytest.approx(0.2)
    assert model.ttft_p99_s == 0.4  # the last finite bound
    assert only(now, now).ttft_p50_s is None


def test_media_of_a_model():
    """Images, seconds of audio, the time to decode them, and how many were known."""
    stage = {"model": "m", "kind": "image", "stage": "decode"}
    decode = "openai_frontend_media_stage_seconds_bucket"
    heard = {"model": "m", "direction": "input"}
    earlier, now = (
        scraped(
            at_s,
            [
                ("openai_frontend_images_total", {"model": "m"}, 10 + 3 * at_s),
                ("openai_frontend_audio_seconds_total", heard, 7 * at_s),
                ("vllm:mm_cache_queries_total", {"model": "m", "version": "1"}, 4 * at_s),
                ("vllm:mm_cache_hits_total", {"model": "m", "version": "1"}, 3 * at_s),
                (decode, {**stage, "le": "0.01"}, at_s),
                (decode, {**stage, "le": "+Inf"}, at_s),
            ],
            models=("m",),
        )
        for at_s in (0, 2)
    )

    model = only(earlier, now)
    assert (model.images_per_s, model.audio_seconds_per_s) == (3, 7)
    assert model.media_decode_p99_s == pytest.approx(0.0099)
    assert model.media_hit_rate == 0.75


def test_requests_of_top_itself_are_not_counted():
    """The request rate leaves out the routes that `top` scrapes."""
    routes = {"/metrics": 9, "/v1/models": 9, "/health/ready": 9, "/v1/chat/completions": 4}
    samples = [
        ("openai_frontend_requests_total", {"route": route, "status": "200"}, value)
        for route, value in routes.items()
    ]

    assert compute_stats(scraped(0, []), scraped(2, samples)).requests_per_s == 2


def test_engines_share_columns():
    """vLLM's and TensorRT-LLM's queues and KV caches are in the same fields."""
    samples = [
        ("vllm:num_requests_running", {"model": "a", "version": "1"}, 4),
        ("vllm:num_requests_waiting", {"model": "a", "version": "1"}, 2),
        ("vllm:kv_cache_usage_perc", {"model": "a", "version": "1"}, 0.5),
        ("nv_trt_llm_request_metrics", {"model": "b", "request_type": "waiting"}, 7),
        ("nv_trt_llm_request_metrics", {"model": "b", "request_type": "max"}, 8),
        ("nv_trt_llm_kv_cache_block_metrics", {"model": "b", "kv_cache_block_type": "max"}, 99),
        ("nv_trt_llm_kv_cache_block_metrics", {"model": "b", "kv_cache_block_type": "fraction"}, 1),
    ]
    now = scraped(1, samples, models=("a",), status="ready")

    [first, second] = compute_stats(now, now).models
    assert (first.engine_waiting, first.kv_cache_usage, first.state) == (2, 0.5, "ready")
    assert (second.engine_waiting, second.kv_cache_usage, second.state) == (7, 1, "")


def test_state_of_an_unavailable_model_is_its_reason():
    """Other models have the state of the gateway."""
    now = scraped(1, [], models=("m", "n"), status="not ready", unready={"m": "its engine died"})

    states = [model.state for model in compute_stats(now, now).models]
    assert states == ["its engine died", "not ready"]


def test_several_gateways_are_added_up():
    """A restarted one counts from zero, and a share is their mean."""
    earlier = {name: scraped(10, output_tokens(100), models=("m",)) for name in ("a", "b")}
    now = {
        name: scraped(
            12,
            [*output_tokens(tokens), ("vllm:kv_cache_usage_perc", {"model": "m"}, usage)],
            models=("m",),
            status=status,
        )
        for name, tokens, usage, status in [("a", 150, 0.2, "ready"), ("b", 10, 0.6, "draining")]
    }

    together = compute_stats(merged(earlier), merged(now))
    [model] = together.models
    assert model.tokens_per_s == (50 + 10) / 2
    assert model.kv_cache_usage == pytest.approx(0.4)
    assert together.status == "1 ready, 1 draining"


def test_gateway_has_the_name_of_its_replica():
    """None if it has none."""
    named = scraped(1, [("openai_frontend_replica_info", {"replica": "gateway1"}, 1)])

    assert compute_row("http://a", named, named).replica == "gateway1"
    assert compute_row("http://a", scraped(1, []), scraped(1, [])).replica is None


def test_errors_are_statuses_of_500_and_more():
    """A 429 is a rejection, not an error."""

    def answered(**counts):
        return [
            ("openai_frontend_requests_total", {"route": "/v1/chat", "status": each[1:]}, count)
            for each, count in counts.items()
        ]

    earlier = scraped(10, answered(_200=5, _429=1, _500=1, _503=0))
    now = scraped(12, answered(_200=50, _429=9, _500=3, _503=2))

    assert compute_stats(earlier, now).errors_per_s == 2


def test_memory_is_that_of_all_gpus():
    """None without GPUs."""
    names = "nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes"
    samples = [(name, {"gpu_uuid": gpu}, 2**30) for name in names for gpu in ("a", "b")]
    with_gpus, without = (scraped(12, each) for each in (samples, []))
    found = [compute_stats(now, now) for now in (with_gpus, without)]

    assert [each.gpu_memory_used_bytes for each in found] == [2**31, None]
    assert [each.gpu_memory_total_bytes for each in found] == [2**31, None]
