"""Two gateways of a Ray Serve deployment behind Ray's HAProxy."""

import asyncio
import json
import re
import time
from collections.abc import Iterator

import httpx
import openai
import pytest

from tests import mock_models
from tests.scale import ray_cluster
from tests.scale.ray_cluster import Cluster

pytestmark = pytest.mark.slow

REPLICAS = 2
CHAT = "/v1/chat/completions"
RUNNING = re.compile(r"^openai_frontend_load_running (\S+)$", re.MULTILINE)
FAST = re.compile(r"^openai_frontend_fast_path_tokens_total (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("ray")
    models = folder / "models"
    mock_models.write_with_tokenizer(models, "mock", tokens_per_second=200)
    with ray_cluster.started(folder, models, replicas=REPLICAS) as started:
        started.wait_for(REPLICAS)
        yield started


def body(**fields):
    return {"model": "mock", "messages": [{"role": "user", "content": "hi"}], **fields}


def test_response_is_that_of_the_gateway(cluster):
    """Headers and errors are the gateway's; the request's id is there once, and the caller's."""
    answer = httpx.post(
        cluster.url + CHAT, json=body(max_tokens=3), headers={"x-request-id": "mine"}
    )
    refused = httpx.post(cluster.url + CHAT, json=body(model="unknown"))

    assert answer.status_code == 200
    assert answer.headers.get_list("x-request-id") == ["mine"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "server" not in answer.headers
    assert answer.json()["usage"]["completion_tokens"] == 3
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")


async def test_streams_of_both_replicas_are_complete(cluster):
    """Each event arrives, and most tokens go from the engine to the socket without Python."""
    before = fast_path_tokens(cluster)
    async with httpx.AsyncClient(base_url=cluster.url, timeout=60) as client:
        answers = await asyncio.gather(
            *(client.post(CHAT, json=body(max_tokens=100, stream=True)) for _ in range(8))
        )

    for answer in answers:
        events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
        texts = [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]
        assert events[-1] == "[DONE]"
        assert sum(bool(text.get("content")) for text in texts) == 100
    assert len({answer.headers["x-served-by"] for answer in answers}) == REPLICAS
    assert fast_path_tokens(cluster) - before > 400


def fast_path_tokens(cluster: Cluster) -> float:
    """The sum over the replicas."""
    counts: dict[str, float] = {}
    while len(counts) < REPLICAS:
        answer = httpx.get(f"{cluster.url}/metrics", timeout=20)
        [value] = FAST.findall(answer.text)
        counts[answer.headers["x-served-by"]] = float(value)
    return sum(counts.values())


def test_disconnect_ends_the_request(cluster):
    """The gateway sees through HAProxy and Ray that the client is gone."""
    with httpx.stream("POST", cluster.url + CHAT, json=body(max_tokens=4000, stream=True)) as told:
        name = told.headers["x-served-by"]
        next(told.iter_lines())

    running = [1.0]  # the whole answer takes 20 s
    deadline = time.monotonic() + 5
    while running[-1] and time.monotonic() < deadline:
        answer = httpx.get(f"{cluster.url}/metrics", timeout=20)
        if answer.headers["x-served-by"] == name:
            running += map(float, RUNNING.findall(answer.text))
    assert running[-1] == 0


def test_killed_replica_is_replaced(cluster):
    """Each request succeeds with the retries of OpenAI's client, because HAProxy may close a
    connection at that moment. Ray starts a new replica.
    """
    names = cluster.wait_for(REPLICAS)
    cluster.replicas()[0].kill()

    with openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none", timeout=60) as client:
        for _ in range(150):
            assert client.chat.completions.create(**body(max_tokens=2)).usage.total_tokens
    assert len(cluster.wait_for(REPLICAS) - names) == 1
