"""Disconnected clients."""

import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.gateway_process import GatewayProcess

pytestmark = pytest.mark.engine

LONG = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "stream": True} | {
    "ignore_eos": True,
    "max_tokens": 1900,
}


ENDED = ("nv_inference_request_success", "nv_inference_request_failure")
TOKENS = ("vllm:generation_tokens_total",)


def total(gateway: GatewayProcess, names: tuple[str, ...]) -> float:
    """The sum of all series whose names begin with the prefix."""
    text = httpx.get(f"{gateway.url}/metrics").text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(names)
    )


def test_disconnect_cancels_the_generation(gateway):
    """The request ends in Triton soon after the client closes its connection: the engine generates
    a small part of its 1,900 tokens. The best of some requests counts: the engine also generates
    while a client or a gateway waits for the processor.
    """
    assert any(tokens_after_a_disconnect(gateway) < 400 for _ in range(5))


def tokens_after_a_disconnect(gateway: GatewayProcess) -> float:
    """The tokens of a stream whose client reads its first one."""
    ended, tokens = total(gateway, ENDED), total(gateway, TOKENS)
    with httpx.stream("POST", f"{gateway.url}/v1/chat/completions", json=LONG) as response:
        next(response.iter_lines())
    deadline = time.monotonic() + 120
    while total(gateway, ENDED) == ended:
        assert time.monotonic() < deadline
        time.sleep(0.02)

    return total(gateway, TOKENS) - tokens
