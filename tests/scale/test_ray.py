"""Two gateways of a Ray Serve deployment behind Ray's HAProxy."""

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Iterator

import httpx
import openai
import pytest

from tests import mock_models
from tests.scale import ray_cluster
from tests.scale.ray_cluster import PYTHON, Cluster

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
    deadline = time.monotonic() + 15
    while running[-1] and time.monotonic() < deadline:
        answer = httpx.get(f"{cluster.url}/metrics", timeout=20)
        if answer.headers["x-served-by"] == name:
            running += map(float, RUNNING.findall(answer.text))
    assert running[-1] == 0


def test_killed_replica_is_replaced(cluster):
    """Each request succeeds without a retry of its client. Ray starts a new replica."""
    names = cluster.wait_for(REPLICAS)
    cluster.replicas()[0].kill()

    url = f"{cluster.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", timeout=60, max_retries=0) as client:
        for _ in range(150):
            assert client.chat.completions.create(**body(max_tokens=2)).usage.total_tokens
    assert len(cluster.wait_for(REPLICAS) - names) == 1


class Load:
    """Short requests one after the other, without retries, and long streams."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.answered = 0
        self._ended = False

    async def ask(self) -> None:
        """Until `end`. Each request must succeed."""
        while not self._ended:
            answer = await self._client.post(CHAT, json=body(max_tokens=5))
            assert answer.status_code == 200, (answer.text, answer.headers)
            self.answered += 1

    async def stream(self, tokens: int) -> str:
        """A complete stream; returns the name of its replica."""
        wanted = body(max_tokens=tokens, stream=True, stream_options={"include_usage": True})
        async with self._client.stream("POST", CHAT, json=wanted) as answer:
            assert answer.status_code == 200, await answer.aread()
            events = [line[6:] async for line in answer.aiter_lines() if line]
        assert events[-1] == "[DONE]"
        assert json.loads(events[-2])["usage"]["completion_tokens"] == tokens
        return answer.headers["x-served-by"]

    def end(self) -> None:
        self._ended = True


async def test_rolling_update_cuts_nothing(cluster):
    """New replicas start before the old ones stop, and those finish their streams: each stream of
    20 s is complete, and each request beside them succeeds at once.
    """

    def change(args):
        args["settings"]["graceful_shutdown_timeout_s"] = 61

    names = cluster.wait_for(REPLICAS)
    async with httpx.AsyncClient(base_url=cluster.url, timeout=60) as client:
        load = Load(client)
        streams = [asyncio.create_task(load.stream(4000)) for _ in range(6)]
        asking = [asyncio.create_task(load.ask()) for _ in range(3)]
        await asyncio.sleep(1)
        await asyncio.to_thread(cluster.update, change)
        served = {await each for each in streams}
        replaced = await asyncio.to_thread(cluster.wait_for_others, names)
        load.end()
        await asyncio.gather(*asking)

    assert served <= names
    assert len(replaced) == REPLICAS
    assert load.answered > 200


async def test_replicas_follow_the_load(cluster):
    """From one replica to two and back; each stream is complete, also in the replica that ends."""

    def change(args):
        args["settings"]["max_concurrent_requests"] = 4
        args["replicas"] = {"min": 1, "max": 2, "upscale_delay_s": 2, "downscale_delay_s": 4}

    await asyncio.to_thread(cluster.update, change)
    await asyncio.to_thread(cluster.wait_for, 1)
    async with httpx.AsyncClient(base_url=cluster.url, timeout=60) as client:
        load = Load(client)
        streams = [asyncio.create_task(load.stream(3000)) for _ in range(4)]
        grown = await asyncio.to_thread(cluster.wait_until_seen, 2)
        served = set(await asyncio.gather(*streams))
        left = await asyncio.to_thread(cluster.wait_for, 1)

    assert served <= grown
    assert left < grown


def test_models_are_unloaded_two_hundred_times(cluster):
    """In Ray's worker process, which keeps its memory and its threads. In the first hundred, each
    thread that loads models fills its part of the allocator once, with up to 9 MB.
    """

    def change(args):
        names = {"model_control_mode": "explicit", "load_model": ["mock"]}
        args["settings"] |= {**names, "enable_model_management": True}
        args["replicas"] = {"min": 1, "max": 1}

    cluster.update(change)
    with httpx.Client(base_url=f"{cluster.url}/v1/models/mock", timeout=60) as models:
        while models.post("/unload").status_code != 200:  # the replica of before
            time.sleep(0.5)
        cluster.wait_for(1)
        replica = cluster.only_replica()
        sizes = []
        for _ in range(200):
            assert models.post("/load").status_code == 200
            assert models.post("/unload").status_code == 200
            sizes.append((replica.memory_info().rss, replica.num_threads()))
        assert models.post("/load").status_code == 200
    answer = httpx.post(cluster.url + CHAT, json=body(max_tokens=2), timeout=60)

    assert answer.json()["usage"]["completion_tokens"] == 2
    first, second = (list(zip(*half, strict=True)) for half in (sizes[:100], sizes[100:]))
    assert max(second[0]) - max(first[0]) < 5_000_000
    assert max(second[1]) <= max(first[1]) + 1


def test_signal_ends_a_replica_for_good(cluster):
    """SIGTERM to its process ends it, as Ray's workers do; another one takes its place."""
    names = cluster.wait_for(1)
    replica = cluster.only_replica()
    replica.terminate()
    replica.wait(60)

    assert cluster.wait_for_others(names).isdisjoint(names)


def test_unsupported_ray_is_refused():
    """The message says which version to install."""
    code = (
        "import ray; ray.__version__ = '2.61.0'; from openai_frontend.ray import app; "
        "app({'model': 'm'})"
    )
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert "Ray 2.61.0 is not supported: install 'ray[serve]==2.60.*'" in done.stderr
