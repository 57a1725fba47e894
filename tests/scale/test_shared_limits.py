"""Two gateways that count the requests of keys in one Redis, from Debian's package."""

import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import mock_models
from tests.fast.auth import key_files
from tests.gateway_process import GatewayProcess
from tests.ports import free_port
from tests.scale.routers import VENV

pytestmark = pytest.mark.slow

PER_MINUTE = 10
# A key for each attempt: a gateway waits half a second for Redis, and then counts alone, as may
# happen on a busy machine.
ONES = [f"one{number}" for number in range(5)]
FAILURES = "openai_frontend_rate_limit_storage_failures"


@contextmanager
def redis(port: int) -> Iterator[None]:
    """A Redis that keeps nothing on disk; it ends with the block."""
    # It is the server or the checker by the name under which it runs.
    process = subprocess.Popen(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""],  # noqa: S607
        executable=VENV / "lib" / "redis-check-rdb",
        env={**os.environ, "LD_LIBRARY_PATH": str(VENV / "lib")},
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not answers(port):
            time.sleep(0.02)
        yield
    finally:
        process.kill()
        process.wait()


def answers(port: int) -> bool:
    from redis import Redis, RedisError

    try:
        return bool(Redis(port=port, socket_timeout=30).ping())
    except RedisError:
        return False


@dataclass
class Pair:
    """Two gateways with the same keys."""

    gateways: list[GatewayProcess]
    redis_port: int

    def ask(self, number: int, secret: str) -> httpx.Response:
        return httpx.post(
            f"{self.gateways[number].url}/v1/completions",
            json={"model": "mock", "prompt": "hi", "max_tokens": 1},
            headers=key_files.bearer(secret),
            timeout=60,
        )

    def failures(self, number: int) -> float:
        text = httpx.get(f"{self.gateways[number].url}/metrics").text
        families = {each.name: each.samples for each in text_string_to_metric_families(text)}
        return families[FAILURES][0].value


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("limits")
    mock_models.write_with_tokenizer(folder / "models", "mock")
    names = (*ONES, "two", "three")
    keys = [key_files.key(name, requests_per_minute=PER_MINUTE) for name in names]
    file, port = key_files.write(folder / "keys.yaml", *keys), free_port()
    options = (
        f"--keys-file={file}",
        "--public-metrics",
        f"--rate-limit-storage=redis://127.0.0.1:{port}/0",
    )
    with (
        GatewayProcess(folder / "models", folder / "1.log", *options) as first,
        GatewayProcess(folder / "models", folder / "2.log", *options) as second,
    ):
        for gateway in (first, second):
            gateway.wait_until_ready()
        yield Pair([first, second], port)


def test_a_key_has_its_limit_once(pair):
    """Whichever gateway a request reaches; each reports what is left of the common limit."""
    with redis(pair.redis_port):
        for one in ONES:
            before = pair.failures(0), pair.failures(1)
            answered = [pair.ask(number % 2, one) for number in range(2 * PER_MINUTE)]
            other = pair.ask(0, "two")
            if (pair.failures(0), pair.failures(1)) == before:
                break

    statuses = [each.status_code for each in answered]
    assert statuses == [200] * PER_MINUTE + [429] * PER_MINUTE
    left = [int(each.headers["x-ratelimit-remaining-requests"]) for each in answered]
    assert left[:PER_MINUTE] == list(reversed(range(PER_MINUTE)))
    refused = answered[-1]
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert 0 < int(refused.headers["retry-after"]) <= 60
    assert (pair.failures(0), pair.failures(1)) == before
    assert other.status_code == 200


def test_gateways_count_alone_while_redis_is_down(pair):
    """No request fails or waits for it, the metric counts them, and the log says so once."""
    before, logged = pair.failures(0), len(pair.gateways[0].output())
    began_s = time.monotonic()
    alone = [pair.ask(0, "three") for _ in range(2 * PER_MINUTE)]
    took_s = time.monotonic() - began_s

    statuses = Counter(each.status_code for each in alone)
    assert statuses.keys() == {200, 429}
    # The limit is refilled meanwhile
    assert PER_MINUTE <= statuses[200] <= PER_MINUTE + took_s * PER_MINUTE / 60
    assert took_s < 10
    assert pair.failures(0) == before + 2 * PER_MINUTE
    silence = "rate_limit_storage does not answer"
    pair.gateways[0].wait_for_line(silence)
    assert pair.gateways[0].output()[logged:].count(silence) == 1

    with redis(pair.redis_port):
        first = counted_in_redis(pair, 0)
        second = counted_in_redis(pair, 1)
        assert (first.status_code, second.status_code) == (200, 200)
        assert left_of(second) < left_of(first)
    pair.gateways[0].wait_for_line("rate_limit_storage answers again")


def counted_in_redis(pair: Pair, number: int) -> httpx.Response:
    """The first answer that the gateway does not count alone."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        before = pair.failures(number)
        answer = pair.ask(number, "three")
        if pair.failures(number) == before:
            return answer
        time.sleep(0.1)
    raise AssertionError("the gateway does not ask Redis")


def left_of(answer: httpx.Response) -> int:
    return int(answer.headers["x-ratelimit-remaining-requests"])
