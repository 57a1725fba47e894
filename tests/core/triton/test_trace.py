"""The core's trace of a request."""

import asyncio
import time

import pytest

from openai_frontend import errors
from openai_frontend.request_context.context import RequestContext, current
from openai_frontend.request_context.record import MAX_CORE_TRACES, RequestRecord
from openai_frontend.triton import _core
from tests import mock_models
from tests.core.triton import python_models
from tests.core.triton.generation_inputs import collect, generation, text

REQUEST_START, QUEUE_START, COMPUTE_START, COMPUTE_END, REQUEST_END = 0, 1, 2, 5, 6

ENSEMBLE = """
platform: "ensemble"
input [{ name: "QUESTION" data_type: TYPE_STRING dims: [1] }]
output [{ name: "REPLY" data_type: TYPE_STRING dims: [1] }]
ensemble_scheduling { step [
  {
    model_name: "mock" model_version: -1
    input_map { key: "text_input" value: "QUESTION" }
    output_map { key: "text_output" value: "between" }
  },
  {
    model_name: "mock" model_version: -1
    input_map { key: "text_input" value: "between" }
    output_map { key: "text_output" value: "REPLY" }
  }
] }
"""

ASKS_ON = '''
"""Asks the model `slow`, and answers before it does, but not before it has begun."""

import pathlib
import threading
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        [request] = requests
        [given] = request.inputs()
        asked = pb_utils.InferenceRequest(
            model_name="slow",
            inputs=[given],
            requested_output_names=["OUT"],
            trace=request.trace(),
        )
        threading.Thread(target=asked.exec).start()
        while not pathlib.Path(%r).exists():
            time.sleep(0.005)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", given.as_numpy())])]
'''
SLOW = """
import pathlib, time

def answer(given):
    pathlib.Path(%r).touch()
    while not pathlib.Path(%r).exists():
        time.sleep(0.005)
    return given
"""


@pytest.fixture
def record():
    """The trace record of a sampled request; the tests' requests are sampled."""
    made = RequestRecord("req_1", core_context='{"traceparent": "00-a-b-01"}')
    token = current.set(RequestContext("req_1", record=made))
    yield made
    current.reset(token)


async def ended(trace):
    async with asyncio.timeout(30):
        while not trace.ended:  # noqa: ASYNC110  Triton's threads set it
            await asyncio.sleep(0.005)
    return trace.activities()


async def test_times(server, record):
    """The timestamps of a request are in order, between its start and end on the same clock."""
    begun_ns = time.monotonic_ns()
    await collect(server.infer("mock", generation(max_tokens=3)))
    [trace] = record.core_traces
    told = await ended(trace)
    at = {activity: ns for *_, activity, ns in told}

    order = [at[each] for each in (REQUEST_START, QUEUE_START, COMPUTE_START, COMPUTE_END)]
    assert [begun_ns, *order, at[REQUEST_END]] == sorted([begun_ns, *order, at[REQUEST_END]])
    assert at[REQUEST_END] <= time.monotonic_ns()
    assert {(parent, model, version) for _, parent, model, version, *_ in told} == {(0, "mock", 1)}


async def test_steps_of_an_ensemble(server, repository, record):
    """Each step has its own trace below the ensemble's."""
    folder = repository / "ensemble"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(ENSEMBLE)
    await server.load_model("ensemble")
    await collect(server.infer("ensemble", {"QUESTION": text("go")}))
    [trace] = record.core_traces
    told = await ended(trace)

    top = {id for id, parent, model, *_ in told if model == "ensemble" and parent == 0}
    steps = {id for id, parent, model, *_ in told if model == "mock" and {parent} == top}
    assert (len(top), len(steps)) == (1, 2)


async def test_cancelled(server, repository, record):
    """A cancelled request ends its trace too."""
    mock_models.write(repository, "slow", tokens_per_second=1)
    await server.load_model("slow")
    stream = server.infer("slow", generation(max_tokens=100))
    await asyncio.sleep(0.05)
    stream.cancel()
    [trace] = record.core_traces

    assert REQUEST_END in {activity for *_, activity, _ in await ended(trace)}


@pytest.mark.parametrize(
    ("model", "inputs"),
    [("mock", {"unknown": text("x")}), ("nobody", {"text_input": text("x")})],
)
async def test_refused(server, record, model, inputs):
    """A request that the core rejects immediately leaves no trace behind."""
    for _ in range(10):
        with pytest.raises(errors.GatewayError):
            server.infer(model, inputs)

    assert _core.live_counts()["requests"] == 0
    await collect(server.infer("mock", generation(max_tokens=1)))


async def test_not_sampled(server):
    """Without a trace context nothing is traced."""
    made = RequestRecord("req_1")
    token = current.set(RequestContext("req_1", record=made))
    await collect(server.infer("mock", generation(max_tokens=1)))
    current.reset(token)

    assert made.core_traces == []


async def test_limit(server, record):
    """Only the first of a request's many inner requests are traced."""
    for _ in range(MAX_CORE_TRACES + 3):
        await collect(server.infer("mock", generation(max_tokens=1)))

    assert len(record.core_traces) == MAX_CORE_TRACES


def successes(server, model):
    """The number of successful requests of the model."""
    [of_version] = server.model_statistics(model)["model_stats"]
    return of_version["inference_stats"]["success"]["count"]


@pytest.mark.slow
async def test_trace_ends_with_the_request(repository, start_server, record):
    """It records nothing afterwards, even if a model that the request called continues."""
    begun, gate = repository.parent / "begun", repository.parent / "gate"
    python_models.write(repository, "asks", answer="")
    (repository / "asks" / "1" / "model.py").write_text(ASKS_ON % str(begun))
    python_models.write(repository, "slow", answer=SLOW % (str(begun), str(gate)))
    server = await start_server()
    await collect(server.infer("asks", {"IN": text("go")}))
    [trace] = record.core_traces
    told = await ended(trace)
    assert {model for _, _, model, *_ in told} == {"asks", "slow"}
    assert not successes(server, "slow")
    gate.touch()

    async with asyncio.timeout(30):
        while not successes(server, "slow"):  # noqa: ASYNC110  Triton's threads count it
            await asyncio.sleep(0.05)
    assert trace.activities() == told
