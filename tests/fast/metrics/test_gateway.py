from dataclasses import replace

import pytest

from openai_frontend.generation import CompletionDelta, TokenCounts, UsageCounter
from openai_frontend.media.modalities import ImageInput
from openai_frontend.metrics import catalog
from openai_frontend.metrics.gateway import GatewayMetrics, GenerationLabels

LABELS = GenerationLabels(model="m", version="2", adapter="a")


@pytest.fixture
def metrics():
    return GatewayMetrics()


@pytest.fixture
def value(metrics):
    """Reads one sample by its name without the prefix, and its labels."""

    def read(name, **labels):
        return metrics.registry.get_sample_value(f"openai_frontend_{name}", labels)

    return read


@pytest.mark.parametrize(
    ("route", "api"),
    [
        ("/v1/chat/completions", "chat_completions"),
        ("/v1/responses", "responses"),
        ("/v1/messages", "messages"),
        ("/v1/messages/count_tokens", "messages"),
        ("/v1/embeddings", ""),
        ("none", ""),
    ],
)
def test_requests_have_their_api(metrics, value, route, api):
    """The label follows from the route, so it adds no series."""
    for status in (200, 200, 404):
        metrics.answered(route, "m", status, 0.5)

    assert value("requests_total", route=route, api=api, model="m", status="200") == 2
    assert value("requests_total", route=route, api=api, model="m", status="404") == 1
    assert value("request_duration_seconds_count", route=route, api=api) == 3


def test_generation_is_recorded_when_it_ends(metrics, value):
    """Its tokens, time to first token and finish reason are counted."""
    generation = metrics.generations_of(LABELS).begin(UsageCounter())
    assert value("requests_running", **LABELS._asdict()) == 1

    generation.add([CompletionDelta("a"), CompletionDelta("b")])
    counts = TokenCounts(prompt_tokens=7, completion_tokens=3, cached_tokens=4)
    generation.add([CompletionDelta("c", finish_reason="length", counts=counts)])
    generation.end()

    assert value("requests_running", **LABELS._asdict()) == 0
    assert value("generations_total", **LABELS._asdict(), finish_reason="length") == 1
    assert value("prompt_tokens_sum", **LABELS._asdict()) == 7
    assert value("cached_prompt_tokens_total", **LABELS._asdict()) == 4
    assert value("generation_tokens_sum", **LABELS._asdict()) == 3
    assert value("time_to_first_token_seconds_count", **LABELS._asdict()) == 1
    assert value("time_per_output_token_seconds_count", **LABELS._asdict()) == 1


@pytest.mark.parametrize(
    ("deltas", "fails", "end"),
    [
        ([], False, "cancelled"),
        ([CompletionDelta("a")], False, "cancelled"),
        ([CompletionDelta("a")], True, "error"),
        ([CompletionDelta(finish_reason="abort")], False, "error"),
        ([CompletionDelta(finish_reason="stop")], False, "stop"),
    ],
)
def test_finish_reason(metrics, value, deltas, fails, end):
    """A generation without a finish reason was cancelled, unless it failed."""
    generation = metrics.generations_of(LABELS).begin(UsageCounter())
    if deltas:
        generation.add(deltas)
    if fails:
        generation.failed()
    generation.end()

    ends = {
        each: value("generations_total", **LABELS._asdict(), finish_reason=each)
        for each in ("stop", "length", "cancelled", "error")
    }
    assert ends == {**dict.fromkeys(ends, 0), end: 1}


def test_token_counts_of_several_responses_add_up(metrics, value):
    """A model may report token counts in every response."""
    generation = metrics.generations_of(LABELS).begin(UsageCounter())
    first, last = TokenCounts(5, 2), TokenCounts(5, 3)
    generation.add([CompletionDelta("x", counts=first)])
    generation.add([CompletionDelta("x", finish_reason="stop", counts=last)])
    generation.end()

    assert value("generation_tokens_sum", **LABELS._asdict()) == 5
    assert value("prompt_tokens_sum", **LABELS._asdict()) == 5


def test_events_of_requests_and_engines_are_counted(metrics, value):
    """Each event has its own metric and labels."""
    metrics.rejected("m", "queue_full")
    metrics.queue_changed("m", 3)
    metrics.queued("m", 0.5)
    metrics.engine_restarted("m")
    metrics.engine_stalled("m", "first_token")
    metrics.slow_client_disconnected()
    metrics.timed_out("total")

    assert value("requests_rejected_total", model="m", reason="queue_full") == 1
    assert value("requests_waiting", model="m") == 3
    assert value("queue_wait_seconds_sum", model="m") == 0.5
    assert value("engine_restarts_total", model="m") == 1
    assert value("engine_stalls_total", model="m", phase="first_token") == 1
    assert value("engine_stalls_total", model="m", phase="inter_token") == 0
    assert value("slow_clients_disconnected_total") == 1
    assert value("timeouts_total", kind="total") == 1
    assert value("timeouts_total", kind="body") == 0


def test_callback_counters_are_read_at_each_scrape(metrics, value):
    """Without a callback they are zero."""
    counts = [5]
    assert value("fast_path_tokens_total") == 0
    metrics.set_callback(catalog.FAST_PATH_TOKENS, lambda: counts[0])

    assert value("fast_path_tokens_total") == 5
    counts[0] = 6
    assert value("fast_path_tokens_total") == 6


class Stream:
    received = 0


def test_time_to_first_token_without_streaming_is_the_engines(metrics, value):
    """If the engine does not report it, nothing is observed."""
    reported, unreported = UsageCounter(), UsageCounter()
    counts = TokenCounts(7, 3)
    for usage, counted in ((reported, replace(counts, first_token_s=0.0)), (unreported, counts)):
        usage.follow(Stream(), streamed=False)
        generation = metrics.generations_of(LABELS).begin(usage)
        generation.add([CompletionDelta("abc", finish_reason="stop", counts=counted)])
        generation.end()

    assert value("time_to_first_token_seconds_count", **LABELS._asdict()) == 1
    assert value("time_per_output_token_seconds_count", **LABELS._asdict()) == 1


def test_time_to_first_token_of_the_engine_is_never_negative(metrics, value):
    """It counts from the same moment as the duration of the generation."""
    usage = UsageCounter()
    usage.follow(Stream(), streamed=False)
    generation = metrics.generations_of(LABELS).begin(usage)
    counts = TokenCounts(7, 3, first_token_s=0.0)
    generation.add([CompletionDelta("abc", finish_reason="stop", counts=counts)])
    generation.end()

    assert value("time_to_first_token_seconds_sum", **LABELS._asdict()) == 0


def test_output_tokens_include_running_generations(metrics, value):
    """No token is counted twice when the generation ends."""
    first, second = Stream(), Stream()
    counters = [UsageCounter(), UsageCounter()]
    for counter, stream in zip(counters, (first, second), strict=True):
        counter.follow(stream)
    generation, other = (metrics.generations_of(LABELS).begin(counter) for counter in counters)
    first.received, second.received = 3, 2
    assert value("output_tokens_total", **LABELS._asdict()) == 5

    generation.end()
    second.received = 4
    assert value("output_tokens_total", **LABELS._asdict()) == 7
    other.end()
    assert value("output_tokens_total", **LABELS._asdict()) == 7


def test_images_of_a_request_are_counted(metrics, value):
    """By number, bytes of their data and pixels."""
    image = ImageInput(base64="A" * 400, digest="", width=30, height=20, format="png")
    metrics.images.read("m", [image, image])

    assert value("images_total", model="m") == 2
    assert value("image_bytes_total", model="m") == 600
    assert value("image_pixels_total", model="m") == 1200
