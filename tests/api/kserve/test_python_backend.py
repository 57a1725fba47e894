"""Models of Triton's Python backend over HTTP and gRPC: sequences, decoupled steps of ensembles and
BLS, and labels of an ensemble's output.
"""

import json
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest
import pytest_asyncio

from tests.api.kserve.conftest import HttpClient, sequence_batching, tensor
from tests.api.kserve.grpc_client import RpcClient, request
from tests.api.kserve.test_grpc import responses
from tests.api.kserve.test_sequences import infer, rpc_infer, step
from tests.api.server.test_grpc_process import grpc_port
from tests.gateway_process import GatewayProcess

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

SUMS = """
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        def given(name):
            return pb_utils.get_input_tensor_by_name(request, name).as_numpy().flatten()[0]

        if not given("READY"):  # another slot of the batch is used
            return pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", numpy.zeros((1, 1), numpy.int32))]
            )
        sequence = int(given("CORRID"))
        before = 0 if given("START") else self.sums[sequence]
        self.sums[sequence] = before + int(given("IN"))
        total = numpy.array([[self.sums[sequence]]], numpy.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", total)])
"""
# Repeats its input, once for each element, as NVIDIA's repeat model does
REPEAT = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            numbers = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            for at in range(len(numbers)):
                part = pb_utils.Tensor("OUT", numbers[at : at + 1])
                sender.send(pb_utils.InferenceResponse([part]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# Calls the model above, and passes on each of its responses
BLS = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            given = pb_utils.get_input_tensor_by_name(request, "IN")
            call = pb_utils.InferenceRequest(
                model_name="repeat", inputs=[given], requested_output_names=["OUT"]
            )
            for answer in call.exec(decoupled=True):
                if answer.has_error():
                    raise pb_utils.TritonModelException(answer.error().message())
                if found := pb_utils.get_output_tensor_by_name(answer, "OUT"):
                    part = pb_utils.Tensor("OUT", found.as_numpy() * 2)
                    sender.send(pb_utils.InferenceResponse([part]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", given)])
"""
OUT = 'output { name: "OUT" data_type: TYPE_%s dims: [%d] %s }\n'
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
PYTHON = {
    "sums": (SUMS, tensor("IN", "INT32", [1]) + OUT % ("INT32", 1, "")
             + sequence_batching("UINT64", "direct {}")),
    "repeat": (REPEAT, tensor("IN", "INT32", [-1]) + OUT % ("INT32", -1, "") + DECOUPLED),
    "bls": (BLS, tensor("IN", "INT32", [-1]) + OUT % ("INT32", -1, "") + DECOUPLED),
    "echo": (ECHO, tensor("IN", "INT32", [-1]) + OUT % ("INT32", -1, "")),
}  # fmt: skip
STEP = """ensemble_scheduling {{ step [{{
  model_name: "{}" model_version: -1
  input_map {{ key: "IN" value: "IN" }} output_map {{ key: "OUT" value: "OUT" }}
}}] }}
"""
ENSEMBLES = {
    "parts": tensor("IN", "INT32", [-1]) + OUT % ("INT32", -1, "") + STEP.format("repeat"),
    "named": tensor("IN", "INT32", [3]) + OUT % ("INT32", 3, 'label_filename: "labels.txt"')
    + STEP.format("echo"),
}  # fmt: skip
NUMBERS = [4, 5, 6]
PACKED = struct.pack("<3i", *NUMBERS)


def write_models(repository: Path) -> None:
    for name, (source, config) in PYTHON.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(source)
        (repository / name / "config.pbtxt").write_text(f'backend: "python"\n{config}')
    for name, config in ENSEMBLES.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(f'platform: "ensemble"\n{config}')
    (repository / "named" / "labels.txt").write_text("cat\ndog\nowl\n")


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A process of its own: stubs start from one that has run no other core before."""
    folder = tmp_path_factory.mktemp("python")
    write_models(folder / "models")
    with GatewayProcess(folder / "models", folder / "log", "--grpc-port=0") as running:
        running.wait_until_ready()
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kserve(process: GatewayProcess) -> AsyncIterator[HttpClient]:
    async with httpx.AsyncClient(base_url=process.url, timeout=60) as client:
        yield HttpClient(client)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rpc(process: GatewayProcess) -> AsyncIterator[RpcClient]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port(process)}") as channel:
        yield RpcClient(channel)


async def test_sequence_over_both_protocols(kserve, rpc):
    """The stub's state follows the sequence, whose requests may change the protocol; another
    sequence has its own.
    """
    sums = [
        await infer(kserve, "sums", 1, step(7, "start")),
        await rpc_infer(rpc, "sums", 100, step(8, "start")),
        await rpc_infer(rpc, "sums", 2, step(7)),
        await infer(kserve, "sums", 3, step(8, "end")),
        await infer(kserve, "sums", 4, step(7, "end")),
    ]

    assert sums == [1, 100, 3, 103, 7]


@pytest.mark.parametrize(
    ("model", "expected"), [("repeat", [4, 5, 6]), ("parts", [4, 5, 6]), ("bls", [8, 10, 12])]
)
async def test_decoupled_responses(kserve, rpc, model, expected):
    """A decoupled model, an ensemble of it and a BLS model that calls it send each response as a
    message over gRPC and as an event over HTTP; the last message of a stream is the final one.
    """
    sent = request(model, {"IN": ("INT32", [3], PACKED)}, id="1")
    sent.parameters["triton_enable_empty_final_response"].bool_param = True

    *parts, final = [each.infer_response for each in await responses(rpc, sent)]
    stream = await kserve.client.post(f"/v2/models/{model}/generate_stream", json={"IN": NUMBERS})
    events = [json.loads(line[6:]) for line in stream.text.splitlines() if line]

    assert [struct.unpack("<i", each.raw_output_contents[0])[0] for each in parts] == expected
    assert [each.parameters["triton_final_response"].bool_param for each in parts] == [False] * 3
    assert final.parameters["triton_final_response"].bool_param
    assert [each["OUT"] for each in events if "OUT" in each] == expected


@pytest.mark.parametrize("model", ["repeat", "parts", "bls"])
async def test_decoupled_models_are_refused_without_a_stream(kserve, rpc, model):
    """ModelInfer and `infer` have one response."""
    sent = request(model, {"IN": ("INT32", [3], PACKED)})
    code, _ = await rpc.refusal("ModelInfer", sent)
    answer = await kserve.infer(
        model, {"name": "IN", "datatype": "INT32", "shape": [3], "data": NUMBERS}
    )

    assert (code, answer.status_code) == ("INVALID_ARGUMENT", 400)


async def test_labels_of_an_ensembles_output(kserve, rpc):
    """The classes have the labels of the ensemble's own file, over both protocols."""
    given: dict[str, Any] = {"name": "IN", "datatype": "INT32", "shape": [3], "data": [1, 9, 5]}
    requested = {"name": "OUT", "parameters": {"classification": 2}}
    over_http = await kserve.infer("named", given, outputs=[requested])
    sent = request("named", {"IN": ("INT32", [3], struct.pack("<3i", 1, 9, 5))})
    sent.outputs.add(name="OUT").parameters["classification"].int64_param = 2
    over_grpc = await rpc.ask("ModelInfer", sent)

    classes = ["9:1:dog", "5:2:owl"]
    assert over_http.json()["outputs"][0]["data"] == classes
    packed = b"".join(struct.pack("<I", len(each)) + each.encode() for each in classes)
    assert over_grpc.raw_output_contents[0] == packed
