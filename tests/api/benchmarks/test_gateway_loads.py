"""Short loads against the real gateway: each scenario is what its name says."""

import http.client
import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import request
from benchmarks.client import Client
from benchmarks.client_process import ClientFailed
from benchmarks.connection import connect
from benchmarks.load import Load, Measured
from benchmarks.measurement import Bench
from benchmarks.plan import QUICK
from benchmarks.refusal import refusal
from benchmarks.scenario import SCENARIOS

pytestmark = pytest.mark.slow  # a gateway of its own under load


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    return Bench.prepare(folder, QUICK, c_floor=None, say=lambda text: None)


@pytest.fixture(scope="module")
def gateway(bench):
    with bench.gateway() as running:
        yield running


def run(gateway, **options) -> Measured:
    usual = {"connections": 4, "warm_up_s": 0.1, "measured_s": 0.3}
    load = Load(port=gateway.port, pids={"server": [gateway.pid]}, **{**usual, **options})
    with Client(load) as client:
        return client.run()


def ask(gateway, message: bytes) -> Any:
    with connect(gateway.port) as connection:
        connection.sendall(message)
        response = http.client.HTTPResponse(connection)
        response.begin()
        return json.loads(response.read())


@pytest.mark.parametrize(
    "chosen",
    [each for each in SCENARIOS if not each.optional and "prompt_bytes" not in each.options],
    ids=lambda chosen: chosen.name,
)
def test_each_scenario_is_answered(gateway, chosen):
    """The shipped server answers to the last token, with every promised metric."""

    few = {"connections": 4, "idle": min(chosen.options.get("idle", 0), 10)}
    measured = run(gateway, **{**chosen.options, **few})

    assert measured.responses > 0
    assert all(metric.of(measured) > 0 for metric in chosen.metrics)


def test_four_tokens_per_step_arrive_as_one_chunk(gateway):
    """Each chunk of an answer of 4 n tokens has four, and usage counts all of them."""

    measured = run(gateway, model=request.BY_FOUR_MODEL, tokens=(64, 64))
    message = request.request("chat", request.BY_FOUR_MODEL, stream=False, tokens=10)
    answer = ask(gateway, message)

    assert measured.tokens_per_chunk == pytest.approx(4, rel=0.01)
    assert answer["usage"]["completion_tokens"] == 10
    assert answer["choices"][0]["message"]["content"] == " token" * 10


def test_refusal_is_the_servers_message(gateway):
    """An accepted scenario has none; a refused one has the message of the 400."""

    long = {"model": request.MODEL, "prompt_bytes": 100_000}  # beyond that model's context

    assert refusal(gateway.port, {"kind": "chat"}) is None
    assert "4096" in str(refusal(gateway.port, long))


def test_saturated_client_fails_the_run(bench, gateway, monkeypatch):
    """The figures would be the client's, not the server's."""

    busy = Measured(seconds=10, client_cpu_s=8.1)
    monkeypatch.setattr(Bench, "load", lambda self, server, **options: busy)
    with pytest.raises(ClientFailed, match="took 81% of its core"):
        bench.scenario(gateway, SCENARIOS[0])

    idle = replace(busy, client_cpu_s=7.9)
    monkeypatch.setattr(Bench, "load", lambda self, server, **options: idle)
    assert bench.scenario(gateway, SCENARIOS[0]) is idle
