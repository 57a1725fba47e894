"""inference.GRPCInferenceService on a real socket: the same answers as over HTTP."""

import asyncio
import contextlib
import struct
from typing import Any

import pytest
import pytest_asyncio

from openai_frontend.kserve.grpc.messages import INFERENCE, methods
from tests.api.kserve.conftest import ALL, other_app
from tests.api.kserve.grpc_client import (
    ModelInferRequest,
    RpcClient,
    request,
    rpc_client,
)
from tests.core.triton.test_inference import VALUES
from tests.fast.auth import key_files
from tests.fast.auth.key_files import key

pytestmark = pytest.mark.asyncio(loop_scope="package")

THREE = struct.pack("<3f", 1.5, -2, 0.25)


@pytest_asyncio.fixture(loop_scope="package")
async def rpc(kserve):
    async with rpc_client(kserve.app) as client:
        yield client


def text(value: str) -> tuple[str, list[int], bytes]:
    data = value.encode()
    return "BYTES", [1], len(data).to_bytes(4, "little") + data


def echoed(model: str, name: str, data: bytes) -> Any:
    """A request for the echo of an input whose name is its datatype."""
    sent = request(model, {name: (name, [3], data)})
    sent.outputs.add(name=f"{name}_echo")
    return sent


@pytest.mark.parametrize("datatype", ALL)
async def test_raw_tensors_equal_the_cores(rpc, datatype):
    """Raw tensors of every datatype come back with the same bytes, datatype and shape."""
    data = VALUES[datatype][0]

    response = await rpc.ask("ModelInfer", echoed("all", datatype, data))

    (output,) = response.outputs
    assert (output.name, output.datatype, list(output.shape)) == (f"{datatype}_echo", datatype, [3])
    assert list(response.raw_output_contents) == [data]
    assert (response.model_name, response.model_version) == ("all", "1")


TYPED: dict[str, tuple[str, list[Any]]] = {
    "BOOL": ("bool_contents", [True, False, True]),
    "UINT8": ("uint_contents", [0, 1, 255]),
    "UINT16": ("uint_contents", [0, 1, 65535]),
    "UINT32": ("uint_contents", [0, 1, 2**32 - 1]),
    "UINT64": ("uint64_contents", [0, 1, 2**64 - 1]),
    "INT8": ("int_contents", [-128, 0, 127]),
    "INT16": ("int_contents", [-(2**15), 0, 2**15 - 1]),
    "INT32": ("int_contents", [-(2**31), 0, 2**31 - 1]),
    "INT64": ("int64_contents", [-(2**63), 0, 2**63 - 1]),
    "FP32": ("fp32_contents", [1.5, -2.0, 0.25]),
    "FP64": ("fp64_contents", [1.5, -2.0, 0.1]),
}
CODES = {"BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b",
         "INT16": "h", "INT32": "i", "INT64": "q", "FP32": "f", "FP64": "d"}  # fmt: skip


def typed(model: str, name: str, datatype: str, shape: list[int], **contents: Any) -> Any:
    made = ModelInferRequest(model_name=model)
    made.inputs.add(name=name, datatype=datatype, shape=shape, contents=contents)
    made.outputs.add(name=f"{name}_echo")
    return made


@pytest.mark.parametrize("datatype", TYPED)
async def test_typed_contents(rpc, datatype):
    """Elements of a typed field become the tensor's bytes."""
    field, values = TYPED[datatype]

    response = await rpc.ask("ModelInfer", typed("all", datatype, datatype, [3], **{field: values}))

    expected = struct.pack(f"<3{CODES[datatype]}", *values)
    assert list(response.raw_output_contents) == [expected]


async def test_typed_bytes(rpc):
    """Elements of bytes get their lengths."""
    sent = typed("all", "BYTES", "BYTES", [2], bytes_contents=[b"a", b""])

    response = await rpc.ask("ModelInfer", sent)

    assert list(response.raw_output_contents) == [b"\x01\x00\x00\x00a\x00\x00\x00\x00"]


async def test_documents_equal_those_of_http(kserve, rpc):
    """Metadata, config, statistics, index and health have the members of HTTP's documents."""
    metadata = (await kserve.client.get("/v2/models/one")).json()
    config = (await kserve.client.get("/v2/models/batched/config")).json()
    index = (await kserve.client.post("/v2/repository/index")).json()
    server = (await kserve.client.get("/v2")).json()

    described = await rpc.ask("ModelMetadata", name="one")
    configured = (await rpc.ask("ModelConfig", name="batched", version="1")).config
    statistics = await rpc.ask("ModelStatistics", name="one")
    everything = await rpc.ask("ModelStatistics")
    found = await rpc.ask("RepositoryIndex")
    about = await rpc.ask("ServerMetadata")
    ready = [(await rpc.ask("ModelReady", name=name)).ready for name in ("one", "absent")]

    assert (described.name, list(described.versions)) == ("one", metadata["versions"])
    assert [each.name for each in described.inputs] == [each["name"] for each in metadata["inputs"]]
    assert list(described.inputs[0].shape) == metadata["inputs"][0]["shape"]
    assert (configured.name, configured.max_batch_size) == (config["name"], 8)
    assert statistics.model_stats[0].name == "one"
    assert {each.name for each in everything.model_stats} > {"one", "mock"}
    assert sorted(each.name for each in found.models) == sorted(each["name"] for each in index)
    assert (about.name, about.version) == (server["name"], server["version"])
    assert list(about.extensions) == server["extensions"][:-1]  # `generate` is HTTP's
    assert ready == [True, False]
    assert (await rpc.ask("ServerLive")).live
    assert (await rpc.ask("ServerReady")).ready


async def test_requested_outputs_and_classification(rpc):
    """Outputs that are not requested are left out, and one may be its top classes."""
    sent = request("batched", {"IN": ("INT32", [2, 2], struct.pack("<4i", 1, 2, 4, 3))}, id="7")
    sent.outputs.add(name="IN_echo").parameters["classification"].int64_param = 1

    response = await rpc.ask("ModelInfer", sent)

    assert response.id == "7"
    assert list(response.outputs[0].shape) == [2, 1]
    assert response.raw_output_contents[0] == b"\x03\x00\x00\x002:1\x03\x00\x00\x004:0"


async def test_classification_with_labels(rpc):
    """The elements of the raw output are `value:index:label`, as over HTTP."""
    sent = request("labelled", {"IN": ("FP32", [4], struct.pack("<4f", 0, 2.5, 0, 1))})
    sent.outputs.add(name="OUT").parameters["classification"].int64_param = 1

    response = await rpc.ask("ModelInfer", sent)

    assert list(response.raw_output_contents) == [text("2.500000:1:dog")[2]]


def unnamed_parameter(sent: Any) -> Any:
    sent.parameters["x"].SetInParent()
    return sent


REFUSED = {
    "unknown model": (request("absent", {}), "NOT_FOUND", "absent"),
    "version": (request("one", {}, model_version="x"), "INVALID_ARGUMENT", "model version 'x'"),
    "missing input": (request("one", {}), "INVALID_ARGUMENT", "expected 1 inputs but got 0"),
    "unknown input": (
        request("one", {"X": ("FP32", [1], b"\0" * 4)}), "INVALID_ARGUMENT", "unexpected",
    ),
    "size": (request("one", {"IN": ("FP32", [3], b"")}), "INVALID_ARGUMENT", "needs 12 bytes"),
    "datatype": (request("one", {"IN": ("X", [3], b"")}), "INVALID_ARGUMENT", "datatype 'X'"),
    "negative dimension": (
        request("one", {"IN": ("FP32", [-1], b"")}), "INVALID_ARGUMENT", "negative dimension",
    ),
    "both contents": (
        ModelInferRequest(
            model_name="one",
            inputs=[{"name": "IN", "datatype": "FP32", "shape": [1],
                     "contents": {"fp32_contents": [1.0]}}],
            raw_input_contents=[b"\0" * 4],
        ), "INVALID_ARGUMENT", "not both",
    ),
    "wrong contents": (
        typed("one", "IN", "FP32", [1], int_contents=[1]), "INVALID_ARGUMENT", "`fp32_contents`",
    ),
    "out of range": (
        typed("all", "INT8", "INT8", [1], int_contents=[128]), "INVALID_ARGUMENT", "out of range",
    ),
    "too few raw": (
        ModelInferRequest(
            model_name="all",
            inputs=[{"name": each, "datatype": "INT8", "shape": [1]} for each in ("INT8", "UINT8")],
            raw_input_contents=[b"\0"],
        ), "INVALID_ARGUMENT", "fewer elements",
    ),
    "too many raw": (
        ModelInferRequest(model_name="one", raw_input_contents=[b"\0"]),
        "INVALID_ARGUMENT", "1 more elements",
    ),
    "parameter without a value": (
        unnamed_parameter(request("one", {"IN": ("FP32", [3], THREE)})),
        "INVALID_ARGUMENT", "'x': it has no value",
    ),
    "decoupled": (
        request("parts", {"IN": text("a")}), "INVALID_ARGUMENT", "use ModelStreamInfer",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
async def test_refused_requests(rpc, case):
    """A bad request gets its code, and details that name the tensor or parameter."""
    sent, code, details = REFUSED[case]

    found = await rpc.refusal("ModelInfer", sent)

    assert found[0] == code, found
    assert details in found[1]


# Methods that this server lacks
LACKING = {
    "SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister",
}  # fmt: skip
NEED_A_NAME = {
    "ModelReady", "ModelMetadata", "ModelInfer", "ModelConfig", "RepositoryModelLoad",
    "RepositoryModelUnload",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted({*methods(INFERENCE)} - {"ModelStreamInfer"}))
async def test_every_method_answers_an_empty_request(rpc, name):
    """Each method answers, or says by name what is missing in the request or in the server."""
    if name in LACKING | NEED_A_NAME:
        code, details = await rpc.refusal(name)
        assert code == ("UNIMPLEMENTED" if name in LACKING else "NOT_FOUND")
        assert details
    else:
        assert (await rpc.ask(name)) is not None


@pytest.mark.parametrize(
    "name", ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"]
)
async def test_named_repository(rpc, name):
    """Triton's message; unlike over HTTP, the index is refused too."""
    refusal = await rpc.refusal(name, repository_name="mine")

    assert refusal == ("UNIMPLEMENTED", "'repository_name' specification is not supported")


async def responses(rpc: RpcClient, *requests: Any) -> list[Any]:
    return [response async for response in rpc.stream(requests)]


@pytest.mark.parametrize(
    ("model", "finals"), [("parts", [False, True]), ("ended", [False, False, True])]
)
async def test_stream_of_a_decoupled_model(rpc, model, finals):
    """Each response of the model is a message; an empty final one comes only if asked for."""
    sent = request(model, {"IN": ("BYTES", [2], text("61")[2] + text("62")[2])}, id="1")
    asking = ModelInferRequest()
    asking.CopyFrom(sent)
    asking.parameters["triton_enable_empty_final_response"].bool_param = True

    plain, with_final = await responses(rpc, sent), await responses(rpc, asking)

    assert [each.infer_response.id for each in plain] == ["1", "1"]
    assert [each.infer_response.raw_output_contents[0][4:] for each in plain] == [b"a", b"b"]
    assert finals == [
        each.infer_response.parameters["triton_final_response"].bool_param for each in with_final
    ]
    assert len(with_final[-1].infer_response.outputs) == (0 if model == "ended" else 2)


async def test_stream_of_several_models(rpc):
    """Requests of a stream run side by side; a failure is one message and ends nothing."""
    sent = [
        request("one", {"IN": ("FP32", [3], THREE)}, id="good"),
        request("absent", {}, id="bad"),
        request("one", {"IN": ("FP32", [3], b"")}, id="short"),
        request("one", {"IN": ("FP32", [3], THREE)}, id="last"),
    ]

    found = {each.infer_response.id: each for each in await responses(rpc, *sent)}

    assert found["good"].infer_response.raw_output_contents[0] == THREE
    assert found["last"].infer_response.parameters["triton_final_response"].bool_param
    assert "absent" in found["bad"].error_message
    assert "needs 12 bytes" in found["short"].error_message


async def test_cancelled_stream_cancels_its_requests(kserve, rpc):
    """The model stops when the client cancels the call."""
    sent = request("slow", {"text_input": text("a b"), "stream": ("BOOL", [1], b"\x01")})
    call = rpc.stream([sent])
    await call.read()
    before = kserve.server.model_gauges("slow")["running"]

    call.cancel()

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10):
            while kserve.server.model_gauges("slow")["running"]:  # noqa: ASYNC110  no event tells
                await asyncio.sleep(0.01)
    assert (before, kserve.server.model_gauges("slow")["running"]) == (1, 0)


async def test_health(rpc):
    """grpc.health.v1 reports the server's readiness and does not know other services."""
    status = (await rpc.ask("Check")).status
    unknown = await rpc.refusal("Check", service="x")

    assert status == 1  # SERVING
    assert unknown[0] == "NOT_FOUND"


KEYS = [
    key("free"),
    key("one", models=["one"]),
    key("counted", tokens_per_minute=100),
    key("looks", scopes=frozenset({"models"})),
    key("slow", requests_per_minute=1),
]


@contextlib.asynccontextmanager
async def closed_to_others(kserve, file, name):
    """A client with a key, of an application that needs one."""
    async with (
        other_app(kserve, keys_file=file) as closed,
        rpc_client(closed.app, name, keys_file=file) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("name", "code"),
    [("free", ""), ("one", ""), ("counted", "PERMISSION_DENIED"), ("looks", "PERMISSION_DENIED"),
     ("nobody", "UNAUTHENTICATED"), ("", "UNAUTHENTICATED")],
)  # fmt: skip
async def test_keys(kserve, tmp_path, name, code):
    """Keys in metadata have the same scopes and limits as over HTTP."""
    file = key_files.write(tmp_path / "keys.yaml", *KEYS)
    sent = request("one", {"IN": ("FP32", [3], THREE)})
    async with closed_to_others(kserve, file, name) as client:
        if code:
            assert (await client.refusal("ModelInfer", sent))[0] == code
        else:
            assert (await client.ask("ModelInfer", sent)).raw_output_contents[0] == THREE


async def test_requests_of_a_stream_count_each(kserve, tmp_path):
    """The second request in a minute of a key with one is refused, within a stream too."""
    file = key_files.write(tmp_path / "keys.yaml", *KEYS)
    sent = [request("one", {"IN": ("FP32", [3], THREE)}, id=str(number)) for number in range(2)]
    async with closed_to_others(kserve, file, "slow") as client:
        found = {each.infer_response.id: each for each in await responses(client, *sent)}

    first, second = found["0"], found["1"]
    assert first.infer_response.raw_output_contents[0] == THREE
    assert "Rate limit reached" in second.error_message


async def test_expired_key_ends_no_stream_but_its_requests(kserve, tmp_path):
    """Each request of a stream is admitted by itself, as each request of an HTTP connection is."""
    file = key_files.write(tmp_path / "keys.yaml", *KEYS)
    async with (
        other_app(kserve, keys_file=file) as closed,
        rpc_client(closed.app, "free", keys_file=file) as client,
    ):
        sent: asyncio.Queue[Any] = asyncio.Queue()

        async def requests():
            while (each := await sent.get()) is not None:
                yield each

        call = client.stream_of(requests())
        one = request("one", {"IN": ("FP32", [3], THREE)})
        sent.put_nowait(one)
        first = await call.read()
        closed.app.state.authenticator.api_keys.replace([])
        sent.put_nowait(one)
        second = await call.read()
        sent.put_nowait(None)

    assert first.infer_response.raw_output_contents[0] == THREE
    assert "API key" in second.error_message


async def test_hidden_models_look_absent(kserve, tmp_path):
    """A model that the key does not allow is reported as not found, and lists omit it."""
    file = key_files.write(tmp_path / "keys.yaml", *KEYS)
    async with closed_to_others(kserve, file, "one") as client:
        refusals = [
            await client.refusal("ModelInfer", request("all", {})),
            await client.refusal("ModelMetadata", name="all"),
            await client.refusal("ModelConfig", name="all"),
        ]
        index = await client.ask("RepositoryIndex")

    assert {code for code, _ in refusals} == {"NOT_FOUND"}
    assert {each.name for each in index.models} == {"one"}
