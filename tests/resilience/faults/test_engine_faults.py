"""Engines that hang, die, fail or ignore cancellation, behind a separate gateway process."""

import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from tests.gateway_process import GatewayProcess
from tests.resilience.faults import gated_engine
from tests.resilience.faults.asking import (
    DEADLINE_S,
    chat,
    chat_events,
    client_of,
    counted,
    error_of,
    serves,
    starts,
    unready,
    until,
)
from tests.resilience.faults.gate import Gate
from tests.resilience.faults.invariants import no_trace_left

pytestmark = pytest.mark.slow

OPTIONS = "first_token_timeout_s: 1\ninter_token_timeout_s: 1\nengine_max_restarts: {restarts}\n"
MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "hangs": (2, {"hang_after_tokens": 5}),
    "rests": (0, {"hang_after_tokens": 5, "hang_s": 0}),  # and until its gate is open
    "fails": (0, {"fail_after_tokens": 5}),
    "never_ends": (0, {"never_ends": True}),
    "says_nothing": (0, {"first_token_delay_s": 3600}),
    "goes_on": (0, {"ignores_cancel": True, "tokens_per_second": 200}),
    "dies": (1, {"die_after_tokens": 5}),
}

GATED = {"hangs": "load", "rests": "wake"}


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Gate]:
    """By model: a closed one makes a state last until the test has seen all of it."""
    folder = tmp_path_factory.mktemp("gates")
    return {name: Gate(folder / name) for name in GATED}


@pytest.fixture(scope="module")
def gateway(
    tmp_path_factory: pytest.TempPathFactory, gates: dict[str, Gate]
) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("faults")
    repository = folder / "models"
    for name, (restarts, arguments) in MODELS.items():
        own = {GATED[name]: gates[name]} if name in GATED else {}
        gated_engine.write(repository, name, own, tasks=["generate"], **arguments)
        options = repository / name / "openai_frontend.yaml"
        options.write_text(OPTIONS.format(restarts=restarts))
    with GatewayProcess(repository, folder / "log") as process:
        process.wait_until_ready()
        for name in ("goes_on", "fails"):  # create now what the first request creates
            asked(process, name, max_tokens=1)
        yield process


@pytest.fixture
async def client(gateway: GatewayProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(gateway) as made:
        yield made


def asked(gateway: GatewayProcess, model: str, **fields: Any) -> httpx.Response:
    url = f"{gateway.url}/v1/chat/completions"
    return httpx.post(url, json=chat(model, **fields), timeout=DEADLINE_S)


async def test_a_hanging_engine_is_restarted(gateway, client, gates):
    """Its streams end with an error event, readiness gives the reason, requests get Retry-After,
    and then it serves again.
    """
    async with no_trace_left(gateway):
        gates["hangs"].close()  # its restart does not end
        told = await chat_events(client, "hangs", max_tokens=20)
        assert error_of(told[-1])["code"] == "engine_stalled"
        assert len(told) >= 5, told
        assert "[DONE]" not in told

        reasons = await unready(client)
        refused = await client.post("/v1/chat/completions", json=chat("hangs"))
        card = (await client.get("/v1/models/hangs")).json()
        kserve = await client.get("/v2/models/hangs/ready")
        assert "has not responded" in reasons["hangs"]
        assert (refused.status_code, kserve.status_code) == (503, 400), refused.text
        assert refused.headers["retry-after"]
        assert "has not responded" in refused.json()["error"]["message"]
        assert (card["ready"], "has not responded" in card["error"]) == (False, True), card

        gates["hangs"].open()
        await until(partial(serves, client, "hangs"))
        assert asked(gateway, "hangs", max_tokens=3).status_code == 200
        stuck = {"model": "hangs", "phase": "inter_token"}
        assert await counted(client, "openai_frontend_engine_stalls_total", **stuck) == 1
        assert await starts(client, "hangs") == 1


async def test_an_engine_that_recovers_is_not_restarted(gateway, client, gates):
    """With no restarts configured, a model is ready again once its engine answers."""
    async with no_trace_left(gateway):
        gates["rests"].close()
        told = await chat_events(client, "rests", max_tokens=20)
        assert error_of(told[-1])["code"] == "engine_stalled"
        assert "rests" in await unready(client)

        gates["rests"].open()
        await until(partial(serves, client, "rests"))
        assert asked(gateway, "rests", max_tokens=20).status_code == 200
        assert await starts(client, "rests") == 0


async def test_a_missing_first_token_gets_504(gateway, client):
    """A complete answer that does not start gets the error envelope and `x-should-retry: false`."""
    async with no_trace_left(gateway):
        answer = await client.post("/v1/chat/completions", json=chat("says_nothing"))

        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "engine_stalled")
        assert answer.headers["x-should-retry"] == "false"
        stuck = {"model": "says_nothing", "phase": "first_token"}
        assert await counted(client, "openai_frontend_engine_stalls_total", **stuck) == 1


async def test_a_missing_final_response_ends_the_stream_with_an_error(gateway, client):
    """A backend that never marks an answer as final continues to serve."""
    async with no_trace_left(gateway):
        told = await chat_events(client, "never_ends", max_tokens=5)
        assert error_of(told[-1])["code"] == "engine_stalled"

        await until(partial(serves, client, "never_ends"))


async def test_an_error_after_some_tokens_is_the_last_event(gateway, client):
    """The tokens before the error are sent."""
    async with no_trace_left(gateway):
        told = await chat_events(client, "fails", max_tokens=20)

        assert error_of(told[-1])["code"] == "inference_failed"
        assert len(told) >= 6
        assert "[DONE]" not in told


async def test_an_engine_that_ignores_cancellation_leaves_nothing(gateway, client):
    """It generates for disconnected clients, and the gateway discards the responses."""
    async with no_trace_left(gateway):
        for _ in range(20):
            body = chat("goes_on", stream=True, max_tokens=100)
            async with client.stream("POST", "/v1/chat/completions", json=body) as response:
                await anext(response.aiter_lines())

        async def nobody_waits() -> bool:
            running = "openai_frontend_requests_running"
            return not await counted(client, running, model="goes_on")

        await until(nobody_waits)

    assert asked(gateway, "goes_on", max_tokens=3).status_code == 200


async def test_an_engine_stays_down_after_its_last_restart(gateway, client):
    """The gateway restarts it up to its limit; then the reason says that it is giving up."""
    async with no_trace_left(gateway):
        began_s = time.monotonic()
        told = await chat_events(client, "dies", max_tokens=20)
        assert error_of(told[-1])["code"] == "model_unavailable"

        async def restarted() -> bool:
            return await starts(client, "dies") == 1

        await until(restarted)
        assert time.monotonic() - began_s > 0.5  # the back-off
        await chat_events(client, "dies", max_tokens=20)

        async def left() -> bool:
            return "giving up after" in (await unready(client)).get("dies", "")

        await until(left)
        refused = await client.post("/v1/chat/completions", json=chat("dies"))
        assert "after 1 restarts in 600 s" in refused.json()["error"]["message"]
