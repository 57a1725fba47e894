"""vllm-router and smg, unmodified and without configuration, in front of three gateways."""

import re
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from tests.scale import routers
from tests.scale.conftest import Replicas
from tests.scale.routers import Router

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"
SERVED_BY = "x-served-by"
IN_A_ROW = 4
# What differs between two equal requests
OWN = re.compile(r'"id":"[^"]*"|"(?:created|cached_tokens)":\d+')


@pytest.fixture(scope="module", params=routers.MODEL_STARTS)
def model_router(
    request: pytest.FixtureRequest, replicas: Replicas, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Router]:
    ports = [each.port for each in replicas.running.values()]
    start = routers.MODEL_STARTS[request.param]
    with routers.running(start, tmp_path_factory.mktemp("router"), ports) as started:
        yield started


def chat(url: str, content: str = "hi", **fields: Any) -> httpx.Response:
    body = {"model": "mock", "messages": [{"role": "user", "content": content}], **fields}
    return httpx.post(url + CHAT, json=body, timeout=60)


def test_stream_is_that_of_a_gateway(model_router, replicas):
    """Byte for byte, besides ids, times and the count of cached tokens."""
    asked: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    routed = chat(model_router.url, **asked)
    direct = chat(replicas.running[routed.headers[SERVED_BY]].url, **asked)

    assert OWN.sub("", routed.text) == OWN.sub("", direct.text)
    assert routed.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
        ("/v1/completions", {"prompt": "hi", "max_tokens": 2}),
        ("/v1/embeddings", {"input": "hi"}),
    ],
)
def test_endpoint(model_router, path, body):
    """Each endpoint is reached, and the header names the gateway that answered."""
    answer = httpx.post(model_router.url + path, json={"model": "mock", **body}, timeout=60)

    assert answer.status_code == 200, answer.text
    assert answer.headers[SERVED_BY].startswith("gateway")


def test_router_follows_the_events_of_gateways(replicas, tmp_path):
    """vllm-router's policy `kv_aware` sends a prompt to the gateway that has computed its
    beginning, although that request did not pass through the router.
    """
    ports = [each.port for each in replicas.running.values()]
    events = list(replicas.event_ports.values())
    start = partial(routers.vllm_router_by_events, event_ports=events)
    with routers.running(start, tmp_path, ports) as router:
        # Nothing says when its subscriptions have begun, or when it has read an event. Without
        # events it would be right in one of 27 cases, and never as often in a row.
        deadline, in_a_row = time.monotonic() + 120, 0
        while in_a_row < IN_A_ROW and time.monotonic() < deadline:
            in_a_row = in_a_row + 1 if placed(router, replicas) else 0
        assert in_a_row == IN_A_ROW


def placed(router: Router, replicas: Replicas) -> bool:
    """Whether the router knows three prompts, each of which one gateway has computed."""
    turns = {name: f"{time.monotonic()} only here. " * 40 for name in replicas.running}
    for name, gateway in replicas.running.items():
        chat(gateway.url, turns[name], max_tokens=1)
    time.sleep(0.3)
    answers = {name: chat(router.url, turn + " more", max_tokens=1) for name, turn in turns.items()}
    return all(answer.headers[SERVED_BY] == name for name, answer in answers.items())


def test_turns_of_a_conversation_stay_together(model_router):
    """The router knows a prompt that begins like an earlier one: vllm-router by the tokens of our
    render endpoint, smg by the text. Its gateway has the beginning in its cache.
    """
    for number in range(6):
        turn = f"{number} words that are only here. " * 40
        first = chat(model_router.url, turn, max_tokens=1)
        places = Counter(
            chat(model_router.url, turn + " more" * more, max_tokens=1).headers[SERVED_BY]
            for more in range(1, 5)
        )
        assert places == {first.headers[SERVED_BY]: 4}
