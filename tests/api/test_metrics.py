"""What /metrics reports of a real engine."""

import json
from collections import defaultdict
from collections.abc import Callable

import httpx
import openai
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from openai_frontend.cli import main

pytestmark = pytest.mark.engine

DEMO = {"model": "demo", "version": "1"}
ANSWERED = {**DEMO, "adapter": ""}
ROUTE = {
    "route": "/v1/chat/completions",
    "api": "chat_completions",
    "model": "demo",
    "status": "200",
}


Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def key(name: str, labels: dict[str, str]) -> tuple[str, frozenset[tuple[str, str]]]:
    """The key of a series in what `scrape` returns."""
    return name, frozenset(labels.items())


@pytest.fixture
def scrape(gateway) -> Callable[[], Series]:
    """The values of all series at one moment, by OpenMetrics' strict parser; 0 if missing."""

    def read() -> Series:
        headers = {"accept": "application/openmetrics-text"}
        text = httpx.get(f"{gateway.url}/metrics", headers=headers).text
        series: Series = defaultdict(float)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                series[key(sample.name, sample.labels)] += sample.value
        return series

    return read


@pytest.fixture
def value(scrape: Callable[[], Series]) -> Callable[..., float]:
    """The current value of one series."""
    return lambda name, labels: scrape()[key(name, labels)]


def test_running_stream_is_visible(client: openai.OpenAI, scrape: Callable[[], Series]):
    """The engine reports it and its cache use while it runs; tokens are counted once at the end."""
    generated = key("vllm:generation_tokens_total", DEMO)
    running = key("vllm:num_requests_running", DEMO)
    cache_use = key("vllm:kv_cache_usage_perc", DEMO)
    output_tokens = key("openai_frontend_output_tokens_total", ANSWERED)

    def stream() -> tuple[Series, Series]:
        """The series before a stream and during it; the latter may be late on a busy machine."""
        before = scrape()
        chunks = client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "Hello"}], stream=True,
            max_tokens=1500, extra_body={"ignore_eos": True},
        )  # fmt: skip
        next(iter(chunks))
        during = scrape()  # the engine reports four times a second
        while (
            not during[cache_use] or during[output_tokens] <= before[output_tokens] + 1
        ) and during[generated] < before[generated] + 1500:
            during = scrape()
        assert sum(1 for _ in chunks) > 0
        after = scrape()
        assert after[running] == 0
        assert after[cache_use] == 0
        assert after[generated] == before[generated] + 1500
        return before, during

    before, during = next(seen for seen in (stream() for _ in range(5)) if seen[1][cache_use])

    assert during[running] == 1
    assert during[key("openai_frontend_requests_running", ANSWERED)] == 1
    assert 0 < during[cache_use] < 1
    assert during[output_tokens] > before[output_tokens] + 1


def test_time_to_first_token_without_streaming(client: openai.OpenAI, value):
    """It is timed as in vLLM: when the engine generates the token, not at the complete answer."""
    names = "vllm:time_to_first_token_seconds_sum", "vllm:e2e_request_latency_seconds_sum"

    def first_share() -> float:
        before = [value(name, DEMO) for name in names]
        client.completions.create(
            model="demo", prompt="Count", max_tokens=200, extra_body={"ignore_eos": True}
        )
        first_s, whole_s = (
            value(name, DEMO) - seconds for name, seconds in zip(names, before, strict=True)
        )
        return float(first_s / whole_s)

    # the first token of a request may wait for other programs of a busy machine
    assert 0 < min(first_share() for _ in range(5)) < 1 / 3


def test_requests_are_counted(client: openai.OpenAI, value):
    """An answered request is counted by its route, model and status."""
    before = value("openai_frontend_requests_total", ROUTE)

    client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "Hello"}], max_tokens=3
    )

    assert value("openai_frontend_requests_total", ROUTE) == before + 1


def test_top_shows_engine_metrics(
    gateway, client: openai.OpenAI, capsys: pytest.CaptureFixture[str]
):
    """`top` shows the engine's queue and cache too."""
    client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "Hello"}], max_tokens=3
    )

    assert main(["top", "--once", "--json", gateway.url]) == 0
    models = {each["model"]: each for each in json.loads(capsys.readouterr().out)["models"]}
    assert models["demo"]["engine_waiting"] == 0
    assert models["demo"]["kv_cache_usage"] == 0
    assert models["demo"]["state"] == "ready"


def test_preemptions_are_counted(gateway):
    """vLLM's engine reports none here."""
    text = httpx.get(f"{gateway.url}/metrics").text

    assert 'vllm:num_preemptions_total{model="demo",version="1"} 0.0' in text


def test_unknown_model_name_is_not_a_label(client: openai.OpenAI, value):
    """A name invented by a client creates no series."""
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(
            model="made-up", messages=[{"role": "user", "content": "Hello"}]
        )

    refused = {**ROUTE, "status": "404"}
    assert value("openai_frontend_requests_total", {**refused, "model": "made-up"}) == 0
    assert value("openai_frontend_requests_total", {**refused, "model": ""}) >= 1
