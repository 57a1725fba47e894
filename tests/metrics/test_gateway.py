from dataclasses import replace

import pytest

from openai_frontend.generation import CompletionDelta, TokenCounts, UsageCounter
from openai_frontend.metrics import catalog
from openai_frontend.metrics.gateway import GatewayMetrics
from openai_frontend.metrics.model import GenerationLabels

MADE_BY = GenerationLabels(model="m", version="2", adapter="a")


@pytest.fixture
def metrics():
    return GatewayMetrics()


@pytest.fixture
def value(metrics):
    """The value of one series, by its name without the prefix and its labels."""

    def read(name, **labels):
        return metrics.registry.get_sample_value(f"openai_frontend_{name}", labels)

    return read


def test_an_answer(metrics, value):
    """An answer counts its tokens, its first token's time, and how it ended."""
    generation = metrics.generations_of(MADE_BY).begin(UsageCounter())
    assert value("requests_running", **MADE_BY._asdict()) == 1

    generation.add([CompletionDelta("a"), CompletionDelta("b")])
    counts = TokenCounts(prompt_tokens=7, completion_tokens=3, cached_tokens=4)
    generation.add([CompletionDelta("c", finish_reason="length", counts=counts)])
    generation.end()

    assert value("requests_running", **MADE_BY._asdict()) == 0
    assert value("generations_total", **MADE_BY._asdict(), finish_reason="length") == 1
    assert value("prompt_tokens_sum", **MADE_BY._asdict()) == 7
    assert value("cached_prompt_tokens_total", **MADE_BY._asdict()) == 4
    assert value("generation_tokens_sum", **MADE_BY._asdict()) == 3
    assert value("time_to_first_token_seconds_count", **MADE_BY._asdict()) == 1
    assert value("time_per_output_token_seconds_count", **MADE_BY._asdict()) == 1


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
def test_how_an_answer_ends(metrics, value, deltas, fails, end):
    """Without a finish reason it was cancelled, unless it failed."""
    generation = metrics.generations_of(MADE_BY).begin(UsageCounter())
    if deltas:
        generation.add(deltas)
    if fails:
        generation.failed()
    generation.end()

    ends = {
        each: value("generations_total", **MADE_BY._asdict(), finish_reason=each)
        for each in ("stop", "length", "cancelled", "error")
    }
    assert ends == {**dict.fromkeys(ends, 0), end: 1}


def test_counts_of_parts_add_up(metrics, value):
    """A model that counts in every response adds to its answer's tokens with each."""
    generation = metrics.generations_of(MADE_BY).begin(UsageCounter())
    first, last = TokenCounts(5, 2), TokenCounts(5, 3)
    generation.add([CompletionDelta("x", counts=first)])
    generation.add([CompletionDelta("x", finish_reason="stop", counts=last)])
    generation.end()

    assert value("generation_tokens_sum", **MADE_BY._asdict()) == 5
    assert value("prompt_tokens_sum", **MADE_BY._asdict()) == 5


def test_what_befalls_requests_and_engines(metrics, value):
    """Each thing that operators want to know of is counted under its words."""
    metrics.rejected("m", "queue_full")
    metrics.queue_changed("m", 3)
    metrics.queued("m", 0.5)
    metrics.engine_restarted("m")
    metrics.watchdog_fired("m", "first_token")
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


def test_what_is_counted_elsewhere(metrics, value):
    """It is zero until somebody is named, who is then asked at each scrape."""
    counts = [5]
    assert value("fast_path_tokens_total") == 0
    metrics.ask(catalog.RELAYED_TEXTS, lambda: counts[0])

    assert value("fast_path_tokens_total") == 5
    counts[0] = 6
    assert value("fast_path_tokens_total") == 6


class Stream:
    received = 0


def test_the_first_token_of_an_answer_that_comes_whole(metrics, value):
    """It is counted when the engine made it; where the engine does not say, it is not counted."""
    told, untold = UsageCounter(), UsageCounter()
    counts = TokenCounts(7, 3)
    for usage, counted in ((told, replace(counts, first_token_s=0.0)), (untold, counts)):
        usage.follow(Stream(), streamed=False)
        generation = metrics.generations_of(MADE_BY).begin(usage)
        generation.add([CompletionDelta("abc", finish_reason="stop", counts=counted)])
        generation.end()

    assert value("time_to_first_token_seconds_count", **MADE_BY._asdict()) == 1
    assert value("time_per_output_token_seconds_count", **MADE_BY._asdict()) == 1


def test_both_times_of_an_answer_begin_together(metrics, value):
    """An engine's own time to the first token counts from the request, as that of the answer, so
    it is never negative.
    """
    usage = UsageCounter()
    usage.follow(Stream(), streamed=False)
    generation = metrics.generations_of(MADE_BY).begin(usage)
    counts = TokenCounts(7, 3, first_token_s=0.0)
    generation.add([CompletionDelta("abc", finish_reason="stop", counts=counts)])
    generation.end()

    assert value("time_to_first_token_seconds_sum", **MADE_BY._asdict()) == 0


def test_tokens_as_they_come(metrics, value):
    """Those of answers under way count too, and never twice."""
    first, second = Stream(), Stream()
    counters = [UsageCounter(), UsageCounter()]
    for counter, stream in zip(counters, (first, second), strict=True):
        counter.follow(stream)
    generation, other = (metrics.generations_of(MADE_BY).begin(counter) for counter in counters)
    first.received, second.received = 3, 2
    assert value("output_tokens_total", **MADE_BY._asdict()) == 5

    generation.end()
    second.received = 4
    assert value("output_tokens_total", **MADE_BY._asdict()) == 7
    other.end()
    assert value("output_tokens_total", **MADE_BY._asdict()) == 7
