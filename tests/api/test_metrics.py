"""What /metrics tells of a real engine's work."""

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
    """A series' value now, by OpenMetrics' strict parser; 0 where it is not there yet."""

    def read(name: str, labels: dict[str, str]) -> float:
        headers = {"accept": "application/openmetrics-text"}
        text = httpx.get(f"{gateway.url}/metrics", headers=headers).text
        families = text_string_to_metric_families(text)
        samples = [sample for family in families for sample in family.samples]
        return float(
            sum(each.value for each in samples if (each.name, each.labels) == (name, labels))
        )

    return read


def test_a_streams_life(client: openai.OpenAI, value):
    """While it runs the engine says so, and how full it is; then its tokens are counted once."""
    before = value("vllm:generation_tokens_total", DEMO)
    responses = value("openai_frontend_output_tokens_total", ANSWERED)
    stream = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "Hello"}], stream=True,
        max_tokens=1500, extra_body={"ignore_eos": True},
    )  # fmt: skip
    next(iter(stream))
    deadline = time.monotonic() + 30
    while value("vllm:num_requests_running", DEMO) != 1:  # the engine tells four times a second
        assert time.monotonic() < deadline
        time.sleep(0.02)

    assert value("openai_frontend_requests_running", ANSWERED) == 1
    assert 0 < value("vllm:kv_cache_usage_perc", DEMO) < 1
    assert value("openai_frontend_output_tokens_total", ANSWERED) > responses + 1

    assert sum(1 for _ in stream) > 0
    assert value("vllm:num_requests_running", DEMO) == 0
    assert value("vllm:kv_cache_usage_perc", DEMO) == 0
    assert value("vllm:generation_tokens_total", DEMO) == before + 1500


def test_an_answer_that_is_not_streamed(client: openai.OpenAI, value):
    """Its first token is timed as vLLM times it: when the engine made it, not when all came."""
    names = "vllm:time_to_first_token_seconds_sum", "vllm:e2e_request_latency_seconds_sum"
    before = [value(name, DEMO) for name in names]
    client.completions.create(
        model="demo", prompt="Count", max_tokens=200, extra_body={"ignore_eos": True}
    )
    first_s, whole_s = (
        value(name, DEMO) - seconds for name, seconds in zip(names, before, strict=True)
    )

    assert 0 < first_s < whole_s / 3


def test_a_request(client: openai.OpenAI, value):
    """An answered request is counted by its route, its model and its status."""
    before = value("openai_frontend_requests_total", ROUTE)

    client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "Hello"}], max_tokens=3
    )

    assert value("openai_frontend_requests_total", ROUTE) == before + 1


def test_top(gateway, client: openai.OpenAI, capsys: pytest.CaptureFixture[str]):
    """The terminal has the engine's queue and cache too."""
    client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "Hello"}], max_tokens=3
    )

    assert main(["top", "--once", "--json", gateway.url]) == 0
    models = {each["model"]: each for each in json.loads(capsys.readouterr().out)["models"]}
    assert models["demo"]["engine_waiting"] == 0
    assert models["demo"]["cache"] == 0
    assert models["demo"]["state"] == "ready"


def test_preemptions(gateway):
    """vLLM's engine tells how many there were: none here."""
    text = httpx.get(f"{gateway.url}/metrics").text

    assert 'vllm:num_preemptions_total{model="demo",version="1"} 0.0' in text


def test_a_model_that_nobody_serves(client: openai.OpenAI, value):
    """A name that a client has made up is no label."""
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(
            model="made-up", messages=[{"role": "user", "content": "Hello"}]
        )

    refused = {**ROUTE, "status": "404"}
    assert value("openai_frontend_requests_total", {**refused, "model": "made-up"}) == 0
    assert value("openai_frontend_requests_total", {**refused, "model": ""}) >= 1
