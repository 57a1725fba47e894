"""Slow answers: keep-alive comments during silence, and the request timeout."""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests import mock_models
from tests.gateway_process import GatewayProcess
from tests.resilience.faults.invariants import no_trace_left

pytestmark = pytest.mark.slow

EVERY_S, TIME_S = 0.2, 3.0
COMMENT = ": keep-alive"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory) -> Iterator[GatewayProcess]:
    """`late` pauses before its first token, `slow` after each token, and `fails` pauses and then
    fails.
    """
    folder = tmp_path_factory.mktemp("silence")
    models: dict[str, dict[str, Any]] = {
        "late": {"first_token_delay_s": 1.0, "answer_tokens": 4},
        "slow": {"tokens_per_second": 2, "answer_tokens": 3},
        "steady": {"tokens_per_second": 20, "answer_tokens": 20},
        "fails": {"first_token_delay_s": 1.0, "fail_after_tokens": 0},
        "fails_soon": {"fail_after_tokens": 0},
        "endless": {"tokens_per_second": 20},
        "mute": {"first_token_delay_s": 60},
    }
    for name, arguments in models.items():
        mock_models.write_with_tokenizer(folder / "models", name, tokens=["a ", "b "], **arguments)
    options = [f"--sse-ping-interval-s={EVERY_S}", f"--request-timeout-s={TIME_S}"]
    with GatewayProcess(folder / "models", folder / "log", *options) as process:
        process.wait_until_ready()
        yield process


def body(path: str, model: str, **fields: Any) -> dict[str, Any]:
    asks = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    return {"model": model, "max_tokens": 1000, **asks, **fields}


def parts(gateway: GatewayProcess, path: str, model: str, **fields: Any) -> list[str]:
    """Return the parts of the stream between empty lines."""
    asked = body(path, model, stream=True, **fields)
    response = httpx.post(gateway.url + path, json=asked, timeout=30)
    assert response.status_code == 200, response.text
    *found, end = response.text.split("\n\n")
    assert end == ""
    return found


def events(found: list[str]) -> list[Any]:
    told = [each.removeprefix("data: ") for each in found if each != COMMENT]
    return [each if each == "[DONE]" else json.loads(each) for each in told]


def test_headers_are_sent_with_the_first_comment(gateway):
    """Long before the first token."""
    asked = body(CHAT, "late", stream=True)
    begun = time.monotonic()
    with httpx.stream("POST", gateway.url + CHAT, json=asked, timeout=30) as response:
        headers_s = time.monotonic() - begun
        lines = [line for line in response.iter_lines() if line]
        whole_s = time.monotonic() - begun

    assert response.headers["content-type"].startswith("text/event-stream")
    assert lines[:2] == [COMMENT] * 2
    assert COMMENT not in lines[lines.index(next(line for line in lines if line != COMMENT)) :]
    assert headers_s < whole_s - 0.3


@pytest.mark.parametrize("fields", [{}, {"logprobs": 0}], ids=["short way", "long way"])
def test_comments_are_sent_between_events_during_silence(gateway, fields):
    """Never within an event."""
    found = parts(gateway, TEXT, "slow", **fields)

    *told, done = events(found)
    assert done == "[DONE]"
    assert "".join(each["choices"][0]["text"] for each in told) == "a b a "
    assert found.count(COMMENT) >= 2


def test_a_steady_stream_has_no_comments(gateway):
    """Of a few streams, one at least: a busy machine makes pauses too."""
    streams = (parts(gateway, TEXT, "steady") for _ in range(5))
    found = next((stream for stream in streams if COMMENT not in stream), None)

    assert found is not None
    assert found[-1] == "data: [DONE]"


@pytest.mark.parametrize("model", ["late", "slow"])
def test_the_openai_sdk_ignores_comments(gateway, model):
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "hi"}], stream=True
        )
        chunks = [chunk.choices[0] for chunk in stream]

    text = "".join(choice.delta.content or "" for choice in chunks)
    assert text == ("a b a b " if model == "late" else "a b a ")
    assert [each.finish_reason for each in chunks if each.finish_reason] == ["stop"]


def test_a_failure_after_a_comment_is_the_last_event(gateway):
    """Its status has been sent already. A failure before the first comment gets its own status."""
    found = parts(gateway, CHAT, "fails")
    sooner = httpx.post(gateway.url + CHAT, json=body(CHAT, "fails_soon", stream=True))

    assert found[0] == COMMENT
    assert events(found)[-1]["error"]["code"] == "inference_failed"
    assert "data: [DONE]" not in found
    assert sooner.status_code == 500


async def test_request_timeout_of_a_complete_answer_is_504(gateway):
    """Clients do not retry it, and the request ends in Triton."""
    async with no_trace_left(gateway), httpx.AsyncClient(timeout=30) as client:
        response = await client.post(gateway.url + CHAT, json=body(CHAT, "endless"))

    assert response.status_code == 504
    assert response.json()["error"]["code"] == "request_timeout"
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("model", ["endless", "mute"])
async def test_request_timeout_ends_a_stream_with_an_error(gateway, model):
    """The stream has its text so far, then the error, and no [DONE]."""
    asked = body(TEXT, model, stream=True)
    async with no_trace_left(gateway), httpx.AsyncClient(timeout=30) as client:
        response = await client.post(gateway.url + TEXT, json=asked)

    *told, last = events(response.text.split("\n\n")[:-1])
    assert last["error"]["code"] == "request_timeout"
    text = "".join(each["choices"][0]["text"] for each in told)
    assert text.startswith("a b a b ") if model == "endless" else text == ""
