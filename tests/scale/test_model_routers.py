"""vllm-router and smg, unmodified and without configuration, in front of three gateways."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.scale import routers
from tests.scale.conftest import Replicas
from tests.scale.routers import Router

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"
SERVED_BY = "x-served-by"
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
    direct, *_ = (chat(each.url, **asked) for each in replicas.running.values())
    routed = chat(model_router.url, **asked)

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
