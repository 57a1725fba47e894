"""What a client sees when it goes away, and when the gateway stops."""

import time
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.gateway_process import ROOT, GatewayProcess

pytestmark = pytest.mark.engine

LONG = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "stream": True} | {
    "ignore_eos": True,
    "max_tokens": 1900,
}


@pytest.fixture
def own_gateway(tmp_path) -> Iterator[GatewayProcess]:
    """A gateway that the test may break."""
    with GatewayProcess(ROOT / "model_repository", tmp_path / "log") as process:
        process.wait_until_ready()
        yield process


ENDED = ("nv_inference_request_success", "nv_inference_request_failure")
TOKENS = ("vllm:generation_tokens_total",)


def total(gateway: GatewayProcess, names: tuple[str, ...]) -> float:
    """Of the series whose names begin like that."""
    text = httpx.get(f"{gateway.url}/metrics").text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(names)
    )


def test_a_client_that_goes_away_ends_its_generation(gateway):
    """The request ends in Triton soon after the client has closed its connection: the engine makes
    a small part of its 1,900 tokens.
    """
    ended, tokens = total(gateway, ENDED), total(gateway, TOKENS)
    with httpx.stream("POST", f"{gateway.url}/v1/chat/completions", json=LONG) as response:
        next(response.iter_lines())
    deadline = time.monotonic() + 30
    while total(gateway, ENDED) == ended:
        assert time.monotonic() < deadline
        time.sleep(0.02)

    assert total(gateway, TOKENS) - tokens < 400


def test_ctrl_c_lets_a_stream_end(own_gateway):
    """A stream that runs when Ctrl-C comes is answered to its end, then the process exits with
    0.
    """
    with httpx.stream("POST", f"{own_gateway.url}/v1/chat/completions", json=LONG) as response:
        lines = response.iter_lines()
        next(lines)
        engines = own_gateway.engine_processes()
        own_gateway.interrupt_group()
        last = [line for line in lines if line][-1]

    assert last == "data: [DONE]"
    assert own_gateway.wait() == 0
    assert [engine for engine in engines if engine.is_running()] == []
