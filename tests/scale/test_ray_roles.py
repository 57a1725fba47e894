"""Ray Serve with prefill replicas, and conversations that stay where their beginning is cached."""

import asyncio
import itertools
import random
import re
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException

import httpx
import psutil
import pytest

from openai_frontend.config import ray_application
from tests import mock_models
from tests.scale import prefill_decode, ray_cluster
from tests.scale.ray_cluster import Cluster

pytestmark = pytest.mark.slow

REPLICAS, SLOTS = 2, 8
CHAT = "/v1/chat/completions"
COUNTS = re.compile(
    r'^openai_frontend_(remote|local)_prefills_total\{(?:.*reason="(\w+)")?.*\} (\S+)$',
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("ray")
    models = folder / "models"
    with socket.create_server(("127.0.0.1", 0)) as side_channel:
        address = f"127.0.0.1:{side_channel.getsockname()[1]}"
        mock_models.write_with_tokenizer(
            models,
            "mock",
            kv_role="kv_both",
            kv_address=address,
            prefix_cache_blocks=4096,
            tokens=[" a", " b", " c"],
            tokens_per_second=100,
        )
        options = ("--prefill-replicas=1", "--routing=prefix")
        with ray_cluster.started(
            folder, models, *options, replicas=REPLICAS, max_concurrent_requests=SLOTS
        ) as started:
            started.wait_for(REPLICAS)
            yield started


def long_text(seed: int) -> str:
    """More tokens than `remote_prefill_min_tokens`, others for each seed."""
    return f"{seed} " + "many words to read " * 100


def ask(cluster: Cluster, *texts: str) -> httpx.Response:
    """A conversation of the user's texts, and the same answer to each."""
    messages = [
        {"role": role, "content": text}
        for each in texts
        for role, text in (("user", each), ("assistant", " a b c"))
    ]
    body = {"model": "mock", "messages": messages[:-1], "max_tokens": 3}
    return httpx.post(cluster.url + CHAT, json=body, timeout=60)


def prefills(cluster: Cluster, replicas: int = REPLICAS) -> Counter[str]:
    """Of the decode replicas: `remote`, or why not."""
    found: dict[str, Counter[str]] = {}
    while len(found) < replicas:
        answer = httpx.get(f"{cluster.url}/metrics", timeout=20)
        counts = Counter[str]()
        for where, reason, value in COUNTS.findall(answer.text):
            counts[reason or where] += int(float(value))
        found[answer.headers["x-served-by"]] = counts
    return sum(found.values(), Counter[str]())


def prefill_replica(cluster: Cluster) -> psutil.Process:
    [found] = [each for each in cluster.replicas() if "refill" in each.cmdline()[0]]
    return found


def wait_for_remote(cluster: Cluster, numbers: Iterator[int], timeout_s: float = 240) -> None:
    """Ask until the prefill replica has computed a prompt."""
    before, deadline = prefills(cluster)["remote"], time.monotonic() + timeout_s
    while prefills(cluster)["remote"] == before:
        assert time.monotonic() < deadline, prefills(cluster)
        assert ask(cluster, long_text(next(numbers))).status_code == 200
        time.sleep(0.5)


def test_prefill_replica_computes_long_prompts(cluster):
    """The decode replicas find it by themselves; short prompts stay. It has metrics."""
    wait_for_remote(cluster, itertools.count())
    before = prefills(cluster)
    answers = [ask(cluster, long_text(1000 + number)).json() for number in range(10)]
    ask(cluster, "short")

    assert prefills(cluster) - before == {"remote": 10, "short": 1}
    assert prefill_metrics(cluster)
    assert {answer["choices"][0]["message"]["content"] for answer in answers} == {" a b c"}
    assert min(answer["usage"]["prompt_tokens"] for answer in answers) > 256


def test_killed_prefill_replica_costs_no_answer(cluster):
    """Decode replicas compute prompts themselves until Ray has replaced it."""
    numbers = itertools.count(2000)
    wait_for_remote(cluster, numbers)
    before, killed = prefills(cluster), prefill_replica(cluster)
    killed.kill()
    statuses = Counter(ask(cluster, long_text(next(numbers))).status_code for _ in range(60))

    assert statuses == {200: 60}
    failed = prefills(cluster) - before
    assert failed["no_peer"] + failed["peer_unreachable"] > 0
    wait_for_remote(cluster, numbers)
    assert prefill_replica(cluster).pid != killed.pid


def test_conversations_stay_on_a_replica(cluster):
    """Without a session, by what comes before the first answer; different ones are spread."""
    served = []
    for number in range(12):
        texts = [f"conversation {number}, turn {turn}" for turn in range(4)]
        answers = [ask(cluster, *texts[: turn + 1]) for turn in range(4)]
        assert all(answer.status_code == 200 for answer in answers)
        served.append({answer.headers["x-served-by"] for answer in answers})

    # One moves while HAProxy still counts another request of its replica, by the bound.
    assert sum(len(each) == 1 for each in served) >= 10
    assert len(set.union(*served)) == REPLICAS


async def test_rejected_request_goes_to_another_replica(cluster):
    """HAProxy holds the whole request, so a full replica's 503 does not reach the client."""
    body = {"model": "mock", "messages": [{"role": "user", "content": "same"}], "max_tokens": 200}
    async with httpx.AsyncClient(base_url=cluster.url, timeout=60) as client:
        answers = await asyncio.gather(*(client.post(CHAT, json=body) for _ in range(2 * SLOTS)))

    assert Counter(answer.status_code for answer in answers) == {200: 2 * SLOTS}
    served = Counter(answer.headers["x-served-by"] for answer in answers)
    assert max(served.values()) > SLOTS  # the queue has a quarter of the slots


@pytest.fixture(scope="module")
def engines(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Cluster]:
    """A decode and a prefill replica with vLLM."""
    if not request.config.getoption("long"):
        pytest.skip("--long runs it")
    folder = tmp_path_factory.mktemp("engines")
    prefill_decode.write_model(folder / "models", "kv_both")
    settings = {"remote_prefill_min_tokens": prefill_decode.BLOCK}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(prefill_decode.NIXL))
        with ray_cluster.started(
            folder, folder / "models", "--prefill-replicas=1", replicas=1, **settings
        ) as started:
            started.wait_for(1)
            yield started


@pytest.mark.engine
def test_answers_with_vllm_equal_those_of_one_engine(engines):
    """Token-identical with the prefill replica and after it is killed. In between, neither engine
    holds a block.
    """
    numbers = random.Random(1)
    prompts = [[numbers.randrange(5, 400) for _ in range(length)] for length in range(40, 500, 15)]
    deadline = time.monotonic() + 480
    while not prefills(engines, replicas=1)["remote"]:
        assert time.monotonic() < deadline, prefills(engines, replicas=1)
        tokens(engines, prompts[-1], f"start {time.monotonic()}")
        time.sleep(1)
    before = prefills(engines, replicas=1)
    remote = [tokens(engines, each, "remote") for each in prompts]
    moved = prefills(engines, replicas=1) - before
    time.sleep(prefill_decode.LEASE_S)
    usage = re.compile(r"^vllm:kv_cache_usage_perc\{.*\} (\S+)$", re.MULTILINE)
    held = usage.findall(prefill_metrics(engines) + httpx.get(f"{engines.url}/metrics").text)
    prefill_replica(engines).kill()
    here = [tokens(engines, each, "here") for each in prompts]

    assert remote == here
    assert moved["remote"] > len(prompts) / 2, moved
    assert list(map(float, held)) == [0, 0]


def tokens(cluster: Cluster, prompt: list[int], salt: str) -> list[int]:
    """A greedy answer; prompts with another salt find nothing of them in a prefix cache."""
    body = {"model": "demo", "prompt": prompt, "max_tokens": 16, "temperature": 0}
    more = {"cache_salt": salt, "return_token_ids": True}
    answer = httpx.post(f"{cluster.url}/v1/completions", json=body | more, timeout=120)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["choices"][0]["token_ids"])


def prefill_metrics(cluster: Cluster) -> str:
    """From the internal listener of the only prefill replica."""
    key = ray_cluster.environment(cluster.folder)[ray_application.TRANSFER_KEY]
    headers = {"authorization": f"Bearer {key}"}
    listeners = [
        each.laddr
        for each in prefill_replica(cluster).net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    ]
    # Not by httpx, whose answers the tests check: Ray's listeners are among them.
    for host, port in listeners:
        connection = HTTPConnection(host, port, timeout=5)
        with suppress(OSError, HTTPException), closing(connection):
            connection.request("GET", "/metrics", headers=headers)
            text = str(connection.getresponse().read(), "utf-8", "replace")
            if "openai_frontend_load_running" in text:
                return text
    raise AssertionError(f"no metrics at {listeners}")
