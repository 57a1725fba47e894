"""A newer core: readiness calls that take seconds and that reap a dead stub."""

import asyncio
import time
from collections.abc import Iterator
from functools import partial

import httpx
import psutil
import pytest

from tests import mock_models
from tests.core.triton import python_models
from tests.core.triton.newer_core import NewerCore
from tests.gateway_process import GatewayProcess
from tests.resilience.faults.asking import client_of, serves, starts, unready, until

pytestmark = pytest.mark.slow

HANGS_S = 3.0  # the Python backend allows each instance 5 s
AT_ONCE_S = 1.5
SERIES = 6
BODY = {"prompt": "a", "max_tokens": 2}
OPTIONS = ("--model-control-mode=explicit", "--load-model=*", "--enable-model-management")


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> NewerCore:
    return NewerCore(tmp_path_factory.mktemp("core"))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, core: NewerCore) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    mock_models.write_with_tokenizer(folder / "models", "fast")
    mock_models.write_with_tokenizer(folder / "models", "part")
    mock_models.write_ensemble(folder / "models", "slow")  # the core is not asked about engines
    python_models.write(folder / "models", "echo")
    options = (*OPTIONS, f"--triton-library={core.library}")
    with GatewayProcess(
        folder / "models", folder / "log", *options, environment=core.environment
    ) as process:
        process.wait_until_ready()
        yield process
        assert process.stop() == 0


async def slowest(client: httpx.AsyncClient, *asked: str) -> float:
    """Return the seconds of the longest of ten rounds of GETs and a completion by `fast`; of some
    series of rounds, the least: other work on the machine can only delay a request, and a call that
    delays requests does so in each series.
    """
    longest_s: list[float] = []
    while min(longest_s, default=AT_ONCE_S) >= AT_ONCE_S and len(longest_s) < SERIES:
        longest_s.append(await slowest_of_ten(client, *asked))
    return min(longest_s)


async def slowest_of_ten(client: httpx.AsyncClient, *asked: str) -> float:
    longest_s = 0.0
    for _ in range(10):
        began_s = time.monotonic()
        answers = [await client.get(path) for path in asked]
        answers.append(await client.post("/v1/completions", json={"model": "fast", **BODY}))
        longest_s = max(longest_s, time.monotonic() - began_s)
        assert {answer.status_code for answer in answers} == {200}
        await asyncio.sleep(0.1)
    return longest_s


async def is_named(client: httpx.AsyncClient, model: str, *, named: bool) -> bool:
    return (model in await unready(client)) is named


async def test_a_hanging_readiness_call_delays_no_request(gateway, core):
    """Requests, model lists and probes are not delayed. The model becomes unready once the core
    says so, and ready again once the core says that.
    """
    async with client_of(gateway) as client:
        core.say("slow", after_s=HANGS_S, ready=False)
        asked = ("/health/live", "/v1/models", "/v2/models/fast/ready")
        assert await slowest(client, *asked) < AT_ONCE_S

        await until(partial(is_named, client, "slow", named=True))
        refused = await client.post("/v1/completions", json={"model": "slow", "prompt": "a"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_unavailable")
        assert (await client.get("/v2/models/slow/ready")).status_code == 400
        assert (await client.get("/v2/models/fast/ready")).status_code == 200

        core.say("slow")
        await until(partial(is_named, client, "slow", named=False))
        served = await client.post("/v1/completions", json={"model": "slow", "prompt": "a"})
        assert served.status_code == 200


async def test_models_load_and_unload_during_a_hanging_readiness_call(gateway, core):
    """An unloaded model is refused at once and serves at once after it is loaded again."""
    core.say("slow", after_s=HANGS_S)
    async with client_of(gateway) as client:
        took_s: list[float] = []
        while len(took_s) < 3 or (not at_once(took_s) and len(took_s) < 3 * SERIES):
            began_s = time.monotonic()
            assert (await client.post("/v1/models/fast/unload")).status_code == 200
            refused = await client.post("/v1/completions", json={"model": "fast", **BODY})
            assert refused.status_code == 503
            assert (await client.post("/v1/models/fast/load")).status_code == 200
            served = await client.post("/v1/completions", json={"model": "fast", **BODY})
            assert served.status_code == 200
            took_s.append(time.monotonic() - began_s)
        assert at_once(took_s), took_s
    core.say("slow")


def at_once(took_s: list[float]) -> bool:
    """Whether most of the last changes were, on a machine that may be busy."""
    return sorted(took_s[-3:])[1] < AT_ONCE_S


async def was_started_again(client: httpx.AsyncClient, model: str) -> bool:
    return await starts(client, model) == 1


async def test_a_dead_stub_that_the_core_reaped_is_replaced(gateway, core):
    children = psutil.Process(gateway.pid).children()
    [stub] = [each for each in children if "echo_0" in each.cmdline()[-2]]
    core.say("echo", stub=stub.pid)
    async with client_of(gateway) as client:
        stub.kill()
        await until(partial(was_started_again, client, "echo"))
        core.say("echo")
        await until(partial(serves, client, "echo"))
        answer = await client.post("/v2/models/echo/generate", json={"IN": "hi"})

    assert (answer.status_code, answer.json()["OUT"]) == (200, "hi")
    assert not stub.is_running()
