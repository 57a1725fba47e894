"""Stub processes of Triton's Python backend that are killed or stopped while they stream."""

import asyncio
import contextlib
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest

from tests.core.triton import python_models
from tests.core.triton.python_models import ECHO
from tests.gateway_process import GatewayProcess
from tests.resilience.faults.asking import (
    client_of,
    error_of,
    events_of,
    serves,
    starts,
    unready,
    until,
)
from tests.resilience.faults.gate import Gate
from tests.resilience.faults.invariants import TRACES, _in_hand

pytestmark = pytest.mark.slow

CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input { name: "IN" data_type: TYPE_STRING dims: [1] }
output { name: "OUT" data_type: TYPE_STRING dims: [1] }
instance_group { count: 1 kind: KIND_CPU }
"""
MODEL = '''
"""Fifty words each second, for ten seconds."""

import threading
import time

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        wait_for_gate()

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            threading.Thread(target=self.answer, args=(sender,)).start()

    def answer(self, sender):
        word = numpy.array([b"word"], dtype=object)
        for _ in range(500):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", word)]))
            time.sleep(0.02)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''
# A new stub does not start while the file is there: so the model stays unready for the test.
GATE = """
import pathlib
import time


def wait_for_gate():
    while pathlib.Path({gate!r}).exists():
        time.sleep(0.01)

"""
# A stub that has to wait for the processor is silent too, but not for as long as that.
OPTIONS = "inter_token_timeout_s: 4\nengine_max_restarts: 2\n"
STREAM = "/v2/models/{}/generate_stream"
SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
# Of a stopped stub, its state or the silence of its stream is noticed first.
REASONS = {
    "killed": "the process of its instance killed_0_0",
    "stopped": "the process of its instance stopped_0_0|its engine has not responded for",
}


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    return Gate(tmp_path_factory.mktemp("gate") / "closed")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, gate: Gate) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("stubs")
    gated = GATE.format(gate=str(gate.path))
    for name in SIGNALS:
        _write(folder / "models" / name, gated + MODEL)
    python_models.write(folder / "models", "first", answer=f"{gated}\nwait_for_gate()\n" + ECHO)
    python_models.write(folder / "models", "second")
    python_models.write_ensemble(folder / "models")
    # The core keeps the requests of a dead stub, which would delay its shutdown by 30 s
    options = ["--model-control-mode=explicit", "--load-model=*", "--exit-timeout-s=1"]
    with GatewayProcess(folder / "models", folder / "log", *options) as process:
        process.wait_until_ready()
        yield process
        assert aborted_by_the_backend(process) or process.stop() == 0


def aborted_by_the_backend(gateway: GatewayProcess) -> bool:
    """Triton's Python backend may abort its process when a stub dies:
    https://github.com/triton-inference-server/server/issues/8882
    """
    if "boost::interprocess::lock_exception" not in gateway.output():
        return False
    try:
        return gateway.wait(10) == -signal.SIGABRT
    except subprocess.TimeoutExpired:  # a stub aborted
        return False


@contextmanager
def known_abort(gateway: GatewayProcess) -> Iterator[None]:
    try:
        yield
    except (AssertionError, TimeoutError, httpx.TransportError, psutil.Error, ValueError):
        if aborted_by_the_backend(gateway):
            pytest.xfail("the Python backend aborted the process: server issue 8882")
        raise


def _write(folder: Path, model: str) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG)
    (folder / "1" / "model.py").write_text(model)
    (folder / "openai_frontend.yaml").write_text(OPTIONS)


def stub(gateway: GatewayProcess, model: str) -> psutil.Process:
    """Return the process of the model's only instance."""
    children = psutil.Process(gateway.pid).children()
    [found] = [each for each in children if f"{model}_0" in _instance(each)]
    return found


def _instance(process: psutil.Process) -> str:
    """Empty if the process has ended."""
    try:
        arguments = process.cmdline()
    except psutil.Error:
        return ""
    return arguments[-2] if len(arguments) > 1 else ""


async def broken(client: httpx.AsyncClient, model: str) -> bool:
    return not await serves(client, model)


async def served(client: httpx.AsyncClient, model: str, body: dict[str, str]) -> httpx.Response:
    """Return the answer of a model that serves again. Triton gives up a stub that is silent for a
    second, also one that only waits for the processor: then it is replaced once more.
    """
    while True:
        await until(partial(serves, client, model))
        answer = await client.post(f"/v2/models/{model}/generate", json=body)
        if "did not respond to Triton in time" not in answer.text:
            return answer


_BODIES = f"openai_frontend_buffered_body_bytes{ {} }"


async def released(client: httpx.AsyncClient) -> bool:
    """Whether the only unfinished requests are those that the core keeps for the broken instances
    of models, with their bodies.
    """
    in_hand = _in_hand((await client.get("/metrics")).text)
    unreleased = {f"openai_frontend_unreleased_requests{ {'model': name} }" for name in SIGNALS}
    return in_hand.keys() <= {*unreleased, _BODIES}


@pytest.mark.parametrize("model", SIGNALS)
async def test_a_stub_lost_mid_stream_is_replaced(gateway, gate, model):
    """The stream ends with an error event, and readiness gives the reason.

    This test does not check threads, the stub's process and the model's unreleased requests: the
    core keeps those of the broken instance, whose requests never end.
    """
    with known_abort(gateway):
        await lose_and_replace(gateway, gate, model)
    assert not [trace for trace in TRACES if trace in gateway.output()]


async def lose_and_replace(gateway: GatewayProcess, gate: Gate, model: str) -> None:
    async with client_of(gateway) as client:
        async with events_of(client, STREAM.format(model), {"IN": "go"}) as events:
            assert "word" in await anext(events)
            gate.close()
            stub(gateway, model).send_signal(SIGNALS[model])
            last = [event async for event in events][-1]
        await until(partial(broken, client, model))
        refused = await client.post(STREAM.format(model), json={"IN": "go"})
        reason = (await unready(client))[model]
        ready = await client.get(f"/v2/models/{model}/ready")

        assert error_of(last)
        assert (refused.status_code, ready.status_code) == (503, 400)
        assert refused.headers["retry-after"]
        assert re.search(REASONS[model], reason)

        gate.open()
        await until(partial(serves, client, model))
        async with events_of(client, STREAM.format(model), {"IN": "go"}) as events:
            assert "word" in await anext(events)
        assert await starts(client, model) == 1
        await until(partial(released, client))


@pytest.mark.parametrize("model", ["second", "ensemble"])
async def test_a_stub_that_stands_still_mixes_up_no_answers(gateway, model):
    """It answers too late for Triton, which would give each later request the answer to the one
    before. The gateway kills it first; every request gets its own answer or an error.
    """
    given, returned = ("QUESTION", "REPLY") if model == "ensemble" else ("IN", "OUT")

    async def ask(text: str) -> httpx.Response:
        return await client.post(f"/v2/models/{model}/generate", json={given: text})

    with known_abort(gateway):
        async with client_of(gateway) as client:
            was = stub(gateway, "second")
            was.send_signal(signal.SIGSTOP)
            texts = [f"question {number}" for number in range(9)]
            asked = [asyncio.create_task(ask(text)) for text in texts]
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            with contextlib.suppress(psutil.NoSuchProcess):  # already killed and reaped
                was.send_signal(signal.SIGCONT)
            asked += [asyncio.create_task(ask(text)) for text in texts]
            answers = [await each for each in asked]

            assert {answer.status_code for answer in answers} in ({503}, {200, 503})
            for text, answer in zip(texts * 2, answers, strict=True):
                assert answer.status_code == 503 or answer.json()[returned] == text
            assert (await served(client, model, {given: "hi"})).json()[returned] == "hi"
            assert not was.is_running() or was.status() == psutil.STATUS_ZOMBIE


async def test_an_ensemble_is_unready_while_the_stub_of_a_part_is_dead(gateway, gate):
    """Its reason names the part, and it serves again after the stub is replaced."""
    ready = "/v2/models/ensemble/ready"
    with known_abort(gateway):
        async with client_of(gateway) as client:
            assert (await client.get(ready)).status_code == 200
            gate.close()
            stub(gateway, "first").kill()
            await until(partial(broken, client, "ensemble"))

            assert "instance first_0 has died" in (await unready(client))["ensemble"]
            assert (await client.get(ready)).status_code == 400
            gate.open()
            answer = await served(client, "ensemble", {"QUESTION": "hi"})
            assert (answer.status_code, answer.json()["REPLY"]) == (200, "hi")
            assert await starts(client, "first") == 1
