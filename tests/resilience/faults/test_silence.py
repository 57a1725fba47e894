"""Slow answers: keep-alive comments during silence, and the request timeout."""

import itertools
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.gateway_process import GatewayProcess
from tests.resilience.faults import gated_engine
from tests.resilience.faults.gate import Gate
from tests.resilience.faults.invariants import no_trace_left

pytestmark = pytest.mark.slow

EVERY_S = 0.2
TIME_S = 4.0  # a busy machine may delay the first tokens by some seconds
COMMENT = ": keep-alive"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    return Gate(tmp_path_factory.mktemp("gate") / "closed")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, gate: Gate) -> Iterator[GatewayProcess]:
    """`late` and `fails` wait for the gate before their first token, and `slow` pauses after each
    token.
    """
    models: dict[str, dict[str, Any]] = {
        "late": {"answer_tokens": 4},
        "slow": {"tokens_per_second": 2, "answer_tokens": 3},
        "steady": {"tokens_per_second": 20, "answer_tokens": 20},
        "fails": {"fail_after_tokens": 0},
    }
    folder = tmp_path_factory.mktemp("silence")
    gates = {name: {"answer": gate} for name in ("late", "fails")}
    with started(folder, models, gates, f"--sse-ping-interval-s={EVERY_S}") as process:
        yield process


@pytest.fixture(scope="module")
def impatient_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """It ends each request after TIME_S."""
    models = {"endless": {"tokens_per_second": 20}, "mute": {"first_token_delay_s": 60}}
    folder = tmp_path_factory.mktemp("impatient")
    options = f"--sse-ping-interval-s={EVERY_S}", f"--request-timeout-s={TIME_S}"
    with started(folder, models, {}, *options) as process:
        yield process


@contextmanager
def started(
    folder: Path,
    models: Mapping[str, Mapping[str, Any]],
    gates: Mapping[str, Mapping[str, Gate]],
    *options: str,
) -> Iterator[GatewayProcess]:
    for name, arguments in models.items():
        tokens = ["a ", "b "]
        gated_engine.write(folder / "models", name, gates.get(name, {}), tokens=tokens, **arguments)
    with GatewayProcess(folder / "models", folder / "log", *options) as process:
        process.wait_until_ready()
        yield process


def body(path: str, model: str, **fields: Any) -> dict[str, Any]:
    asks = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    return {"model": model, "max_tokens": 1000, **asks, **fields}


def parts(gateway: GatewayProcess, path: str, model: str, **fields: Any) -> list[str]:
    """Return the parts of the stream between empty lines."""
    asked = body(path, model, stream=True, **fields)
    response = httpx.post(gateway.url + path, json=asked)
    assert response.status_code == 200, response.text
    *found, end = response.text.split("\n\n")
    assert end == ""
    return found


def opened_after(gate: Gate, comments: int, gateway: GatewayProcess, model: str) -> list[str]:
    """Return the lines of a chat whose gate opens after so many comments."""
    gate.close()
    asked = body(CHAT, model, stream=True)
    with httpx.stream("POST", gateway.url + CHAT, json=asked) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in response.iter_lines() if line)
        first = [next(lines) for _ in range(comments)]
        assert first == [COMMENT] * comments
        gate.open()
        return [*first, *lines]


def events(found: list[str]) -> list[Any]:
    told = [each.removeprefix("data: ") for each in found if each != COMMENT]
    return [each if each == "[DONE]" else json.loads(each) for each in told]


def test_headers_are_sent_with_the_first_comment(gateway, gate):
    """Before the first token, which comes when both have arrived; no comment follows it. Of a few
    streams, one at least: a busy machine makes pauses too.
    """
    streams = (opened_after(gate, 2, gateway, "late") for _ in range(5))
    answers = (list(itertools.dropwhile(COMMENT.__eq__, lines)) for lines in streams)
    found = next((answer for answer in answers if COMMENT not in answer), None)

    assert found is not None
    assert found[-1] == "data: [DONE]"


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
def test_the_openai_sdk_ignores_comments(gateway, gate, model):
    if model == "late":
        gate.close()
        threading.Timer(1.0, gate.open).start()
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "hi"}], stream=True
        )
        chunks = [chunk.choices[0] for chunk in stream]

    text = "".join(choice.delta.content or "" for choice in chunks)
    assert text == ("a b a b " if model == "late" else "a b a ")
    assert [each.finish_reason for each in chunks if each.finish_reason] == ["stop"]


def test_a_failure_after_a_comment_is_the_last_event(gateway, gate):
    """Its status has been sent already. A failure before the first comment gets its own status: of
    a few, one at least comes before it.
    """
    found = opened_after(gate, 1, gateway, "fails")
    asked = body(CHAT, "fails", stream=True)
    sooner = (httpx.post(gateway.url + CHAT, json=asked).status_code for _ in range(5))

    assert events(found)[-1]["error"]["code"] == "inference_failed"
    assert "data: [DONE]" not in found
    assert 500 in sooner


async def test_request_timeout_of_a_complete_answer_is_504(impatient_gateway):
    """Clients do not retry it, and the request ends in Triton."""
    gateway = impatient_gateway
    async with no_trace_left(gateway), httpx.AsyncClient() as client:
        response = await client.post(gateway.url + CHAT, json=body(CHAT, "endless"))

    assert response.status_code == 504
    assert response.json()["error"]["code"] == "request_timeout"
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("model", ["endless", "mute"])
async def test_request_timeout_ends_a_stream_with_an_error(impatient_gateway, model):
    """The stream has its text so far, then the error, and no [DONE]."""
    gateway = impatient_gateway
    asked = body(TEXT, model, stream=True)
    async with no_trace_left(gateway), httpx.AsyncClient() as client:
        response = await client.post(gateway.url + TEXT, json=asked)

    *told, last = events(response.text.split("\n\n")[:-1])
    assert last["error"]["code"] == "request_timeout"
    text = "".join(each["choices"][0]["text"] for each in told)
    assert text.startswith("a b a b ") if model == "endless" else text == ""
