"""What /metrics reports of a real engine."""

import json
import time
from collections.abc import Callable

import httpx
import openai
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from openai_frontend.cli import main

pytestmark = pytest.mark.engine

DEMO = {"model": "demo", "version": "1"}
ANSWERED = {**DEMO, "adapter": ""}
ROUTE = {"route": "/v1/chat/completions", "model": "demo", "status": "200"}


@pytest.fixture
def value(gateway) -> Callable[..., float]:
    """The current value of a series, by OpenMetrics' strict parser; 0 if it is missing."""

    def read(name: str, labels: dict[str, str]) -> float:
        headers = {"accept": "application/openmetrics-text"}
        text = httpx.get(f"{gateway.url}/metrics", headers=headers).text
        families = text_string_to_metric_families(text)
        samples = [sample for family in families for sample in family.samples]
        return float(
            sum(each.value for each in samples if (each.name, each.labels) == (name, labels))
        )

    return read


def test_running_stream_is_visible(client: openai.OpenAI, value):
    """The engine reports it and its cache use while it runs; tokens are counted once at the end."""
    before = value("vllm:generation_tokens_total", DEMO)
    responses = value("openai_frontend_output_tokens_total", ANSWERED)
    stream = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "Hello"}], stream=True,
        max_tokens=1500, extra_body={"ignore_eos": True},
    )  # fmt: skip
    next(iter(stream))
    deadline = time.monotonic() + 30
    while value("vllm:num_requests_running", DEMO) != 1:  # the engine reports four times a second
        assert time.monotonic() < deadline
        time.sleep(0.02)

    assert value("openai_frontend_requests_running", ANSWERED) == 1
    assert 0 < value("vllm:kv_cache_usage_perc", DEMO) < 1
    assert value("openai_frontend_output_tokens_total", ANSWERED) > responses + 1

    assert sum(1 for _ in stream) > 0
    assert value("vllm:num_requests_running", DEMO) == 0
    assert value("vllm:kv_cache_usage_perc", DEMO) == 0
    assert value("vllm:generation_tokens_total", DEMO) == before + 1500


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
