"""System shared memory over HTTP and gRPC: regions, and tensors in them."""

import contextlib
import json
import os
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import pytest_asyncio

from tests.api.kserve.conftest import KServe, other_app
from tests.api.kserve.grpc_client import ModelInferRequest, RpcClient, request, rpc_client
from tests.api.kserve.test_infer import OCTETS, described, split
from tests.fast.auth import key_files
from tests.fast.auth.key_files import bearer, key

pytestmark = pytest.mark.asyncio(loop_scope="package")

FOLDER = Path("/dev/shm")  # noqa: S108  where shm_open has its objects
ALLOWED = {"triton_option": {"allow-client-shm": "true"}}
MIB = 2**20
VALUES = struct.pack("<3f", 1.5, -2, 0.25)
URL = "/v2/systemsharedmemory"
INFER = "/v2/models/one/infer"


class Object:
    """A shared memory object of 4 MiB; tensors of `one` begin with VALUES."""

    def __init__(self, name: str) -> None:
        self.key = f"/{name}"
        self.path = FOLDER / name
        self.path.write_bytes(VALUES.ljust(4 * MIB, b"\0"))

    def at(self, offset: int, byte_size: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(offset)
            return file.read(byte_size)


@pytest.fixture
def shm():
    made = Object(f"openai_frontend_api_{os.getpid()}")
    yield made
    made.path.unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def sharing(kserve: KServe, **settings: Any) -> AsyncIterator[tuple[KServe, RpcClient]]:
    """An application that allows shared memory, and a client of its gRPC server."""
    async with (
        other_app(kserve, **ALLOWED, **settings) as app,
        rpc_client(app.app) as rpc,
    ):
        yield app, rpc


@pytest_asyncio.fixture(loop_scope="package")
async def both(kserve, shm):
    """Such an application with the region `r`, which is the whole object."""
    async with sharing(kserve) as (app, rpc):
        body = {"key": shm.key, "offset": 0, "byte_size": 4 * MIB}
        response = await app.client.post(f"{URL}/region/r/register", json=body)
        assert (response.status_code, response.content) == (200, b"")
        yield app, rpc


def placed(offset: int, byte_size: int, region: str = "r") -> dict[str, Any]:
    found = {"shared_memory_region": region, "shared_memory_byte_size": byte_size}
    return {**found, "shared_memory_offset": offset} if offset else found


def tensor(offset: int = 0, byte_size: int = 12, **fields: Any) -> dict[str, Any]:
    return {"name": "IN", "datatype": "FP32", "shape": [byte_size // 4],
            "parameters": placed(offset, byte_size), **fields}  # fmt: skip


def echo(offset: int, byte_size: int, **more: Any) -> dict[str, Any]:
    return {"name": "IN_echo", "parameters": {**placed(offset, byte_size), **more}}


async def test_tensors_in_and_out_over_http(both, shm):
    """The output is in the region, and the response has its place and real size instead of data."""
    app, _ = both

    response = await app.infer("one", tensor(), outputs=[echo(MIB, 1000)])

    (output,) = response.json()["outputs"]
    assert output == {"name": "IN_echo", "datatype": "FP32", "shape": [3],
                      "parameters": placed(MIB, 12)}  # fmt: skip
    assert shm.at(MIB, 16) == VALUES + bytes(4)


def message(offset: int, byte_size: int, *, out: tuple[int, int] | None = None) -> Any:
    sent = ModelInferRequest(model_name="one")
    shape = [byte_size // 4]
    places = [(sent.inputs.add(name="IN", datatype="FP32", shape=shape), (offset, byte_size))]
    output = sent.outputs.add(name="IN_echo")
    if out is not None:
        places.append((output, out))
    for each, place in places:
        each.parameters["shared_memory_region"].string_param = "r"
        each.parameters["shared_memory_offset"].int64_param = place[0]
        each.parameters["shared_memory_byte_size"].int64_param = place[1]
    return sent


async def test_tensors_in_and_out_over_grpc(both, shm):
    """As over HTTP; clients count on an element of raw_output_contents for each output."""
    _, rpc = both

    response = await rpc.ask("ModelInfer", message(0, 12, out=(MIB, 1000)))

    (output,) = response.outputs
    assert output.parameters["shared_memory_region"].string_param == "r"
    assert output.parameters["shared_memory_offset"].int64_param == MIB
    assert output.parameters["shared_memory_byte_size"].int64_param == 12
    assert list(response.raw_output_contents) == [b""]
    assert shm.at(MIB, 12) == VALUES


async def test_stream_with_shared_memory(both, shm):
    """Requests of a stream use the region too."""
    _, rpc = both

    found = [each async for each in rpc.stream([message(0, 12, out=(MIB, 12))])]

    assert [each.error_message for each in found] == [""]
    assert shm.at(MIB, 12) == VALUES


async def test_large_tensors(both, shm):
    """Above 64 KiB the core reads the region itself; the output is complete."""
    data = os.urandom(MIB)
    with shm.path.open("r+b") as file:
        file.write(data)
    app, rpc = both

    response = await app.infer("one", tensor(0, MIB), outputs=[echo(MIB, MIB)])
    await rpc.ask("ModelInfer", message(0, MIB, out=(2 * MIB, MIB)))

    assert response.status_code == 200, response.text
    assert shm.at(MIB, MIB) == shm.at(2 * MIB, MIB) == data


async def test_mixed_with_other_forms(both, shm):
    """One request may have inputs in JSON, as bytes and in a region, and outputs likewise."""
    app, _ = both
    flags = struct.pack("<2h", 7, -7)
    shared = {"name": "FP32", "datatype": "FP32", "shape": [3], "parameters": placed(0, 12)}
    inputs = [
        shared,
        described("INT16", "INT16", flags, [2]),
        {"name": "BOOL", "datatype": "BOOL", "shape": [1], "data": [True]},
    ]
    outputs = [
        {"name": "INT16_echo", "parameters": placed(MIB, 4)},
        {"name": "FP32_echo", "parameters": {"binary_data": True}},
        {"name": "BOOL_echo"},
    ]
    head = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    headers = {**OCTETS, "inference-header-content-length": str(len(head))}
    url = "/v2/models/all/infer"

    answer, tail = split(await app.client.post(url, content=head + flags, headers=headers))

    by_name = {each["name"]: each for each in answer["outputs"]}
    assert by_name["INT16_echo"]["parameters"] == placed(MIB, 4)
    assert by_name["BOOL_echo"]["data"] == [True]
    assert tail == VALUES
    assert shm.at(MIB, 4) == flags


async def test_raw_contents_skip_shared_inputs(both):
    """Over gRPC, raw_input_contents has the inputs that are not in a region."""
    _, rpc = both
    sent = request("all", {"INT8": ("INT8", [2], b"\1\2")})
    added = sent.inputs.add(name="FP32", datatype="FP32", shape=[3])
    added.parameters["shared_memory_region"].string_param = "r"
    added.parameters["shared_memory_byte_size"].int64_param = 12
    for name in ("FP32_echo", "INT8_echo"):
        sent.outputs.add(name=name)

    response = await rpc.ask("ModelInfer", sent)

    found = zip(response.outputs, response.raw_output_contents, strict=True)
    assert {output.name: data for output, data in found} == {
        "FP32_echo": VALUES,
        "INT8_echo": b"\1\2",
    }


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown region": ({"inputs": [tensor(parameters=placed(0, 12, "x"))]}, "shared memory region"),
    "beyond the region": ({"inputs": [tensor(4 * MIB - 4)]}, "Invalid offset + byte size"),
    "no size": (
        {"inputs": [tensor(parameters={"shared_memory_region": "r"})]}, "shared_memory_byte_size",
    ),
    "no region": (
        {"inputs": [tensor(parameters={"shared_memory_byte_size": 4})]}, "shared_memory_region",
    ),
    "another size": ({"inputs": [tensor(0, 12, shape=[4])]}, "needs 16 bytes, got 12"),
    "data too": ({"inputs": [tensor(data=[1.0, 2.0, 3.0])]}, "leave out `data`"),
    "binary data too": (
        {"inputs": [tensor(parameters={**placed(0, 12), "binary_data_size": 12})]}, "leave out",
    ),
    "a small output": (
        {"inputs": [tensor()], "outputs": [echo(MIB, 11)]},
        "output 'IN_echo' has 12 bytes, but the request gives it 11 bytes",
    ),
    "a binary output": (
        {"inputs": [tensor()], "outputs": [echo(MIB, 12, binary_data=True)]}, "not both",
    ),
    "a classified output": (
        {"inputs": [tensor()], "outputs": [echo(MIB, 12, classification=1)]}, "not both",
    ),
    "a huge offset": ({"inputs": [tensor(2**64)]}, "shared_memory_offset"),
    "duplicate": ({"inputs": [tensor(), tensor()]}, "duplicate input"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
async def test_refused_tensors(both, case):
    """The error names the tensor or the parameter."""
    body, words = REFUSED[case]

    response = await both[0].client.post(INFER, json=body)

    assert response.status_code == 400, response.text
    assert words in response.json()["error"]


async def test_small_output_over_grpc(both):
    code, details = await both[1].refusal("ModelInfer", message(0, 12, out=(MIB, 4)))

    assert (code, "'IN_echo' has 12 bytes" in details) == ("INVALID_ARGUMENT", True)


async def test_shortened_object(both, shm):
    """Requests fail once the object is shorter than its region, and the server lives."""
    app, _ = both
    os.truncate(shm.path, MIB)

    response = await app.infer("one", tensor(2 * MIB, MIB), outputs=[echo(0, MIB)])
    other = await app.infer("one", {"name": "IN", "datatype": "FP32", "shape": [1], "data": [1]})

    assert (response.status_code, "truncated" in response.text) == (400, True)
    assert other.status_code == 200


async def test_regions_of_both_protocols(both, shm):
    """What one protocol registers, the other one lists, refuses to register again and removes."""
    app, rpc = both
    listed = {"name": "r", "key": shm.key, "offset": 0, "byte_size": 4 * MIB}
    await rpc.ask("SystemSharedMemoryRegister", name="s", key=shm.key, offset=4, byte_size=8)

    status = (await app.client.get(f"{URL}/status")).json()
    one = (await app.client.get(f"{URL}/region/s/status")).json()
    regions = (await rpc.ask("SystemSharedMemoryStatus")).regions
    again = await app.client.post(f"{URL}/region/s/register", json={"key": shm.key, "byte_size": 1})
    refused = await rpc.refusal(
        "SystemSharedMemoryRegister", name="r", key=shm.key, offset=0, byte_size=8
    )
    await app.client.post(f"{URL}/region/s/unregister")
    left = (await rpc.ask("SystemSharedMemoryStatus")).regions
    await rpc.ask("SystemSharedMemoryUnregister")

    assert status == [listed, {"name": "s", "key": shm.key, "offset": 4, "byte_size": 8}]
    assert one == status[1:]
    assert (regions["s"].key, regions["s"].offset, regions["s"].byte_size) == (shm.key, 4, 8)
    assert (again.status_code, "already in manager" in again.text) == (400, True)
    assert refused[0] == "ALREADY_EXISTS"
    assert set(left) == {"r"}
    assert (await app.client.get(f"{URL}/status")).json() == []


async def test_unknown_region(both):
    app, rpc = both

    response = await app.client.get(f"{URL}/region/x/status")

    assert (response.status_code, "'x'" in response.text) == (404, True)
    assert (await rpc.refusal("SystemSharedMemoryStatus", name="x"))[0] == "NOT_FOUND"


async def test_extension_is_listed_only_if_allowed(kserve, both):
    """GET /v2 and ServerMetadata list shared memory if the server allows it."""
    app, rpc = both
    found = (await app.client.get("/v2")).json()["extensions"]

    assert "system_shared_memory" in found
    assert "system_shared_memory" in (await rpc.ask("ServerMetadata")).extensions
    assert "system_shared_memory" not in (await kserve.client.get("/v2")).json()["extensions"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "status"), ("GET", "region/r/status"), ("POST", "region/r/register"),
     ("POST", "unregister"), ("POST", "region/r/unregister")],
)  # fmt: skip
async def test_off_by_default(kserve, method, path):
    """Each request is refused with the option that allows it."""
    body = {"key": "/x", "byte_size": 1} if path.endswith("/register") else None
    response = await kserve.client.request(method, f"{URL}/{path}", json=body)

    assert (response.status_code, "--allow-client-shm" in response.text) == (501, True)


async def test_tensors_are_refused_by_default(kserve):
    response = await kserve.infer("one", tensor())

    assert (response.status_code, "--allow-client-shm" in response.text) == (400, True)


@pytest.mark.parametrize("path", ["status", "region/r/register", "region/r/unregister"])
async def test_cuda_over_http(both, path):
    """CUDA shared memory is refused by name, also if system shared memory is allowed."""
    method = "GET" if path == "status" else "POST"
    response = await both[0].client.request(method, f"/v2/cudasharedmemory/{path}")

    assert (response.status_code, "CUDA" in response.text) == (501, True)


@pytest.mark.parametrize("name", ["Status", "Register", "Unregister"])
async def test_cuda_over_grpc(both, name):
    code, details = await both[1].refusal(f"CudaSharedMemory{name}")

    assert (code, "CUDA" in details) == ("UNIMPLEMENTED", True)


SCOPES = frozenset({"inference", "models", "admin"})


async def test_region_belongs_to_the_key_that_registered_it(kserve, shm, tmp_path):
    """Registering needs the scope `admin`; another key cannot use the region, even an admin's."""
    keys = [
        key("owner", scopes=SCOPES),
        key("admin", scopes=SCOPES),
        key("plain", scopes=SCOPES - {"admin"}),
    ]
    file = key_files.write(tmp_path / "keys.yaml", *keys)
    body = {"key": shm.key, "byte_size": 100}
    async with sharing(kserve, keys_file=file) as (app, _):

        async def ask(name: str, path: str, body: Any) -> int:
            response = await app.client.post(path, json=body, headers=bearer(name))
            return response.status_code

        assert await ask("plain", f"{URL}/region/r/register", body) == 403
        assert await ask("owner", f"{URL}/region/r/register", body) == 200
        sent = {"inputs": [tensor()]}
        used = {name: await ask(name, INFER, sent) for name in ("owner", "admin", "plain")}
        assert await ask("plain", f"{URL}/unregister", None) == 403

    assert used == {"owner": 200, "admin": 400, "plain": 400}


def mappings(key: str) -> list[tuple[int, int]]:
    """The addresses at which this process sees an object, each to its end."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    found = [line.split()[0].split("-") for line in lines if line.endswith(f"{FOLDER}{key}")]
    return [(int(begin, 16), int(end, 16)) for begin, end in found]


def address(buffer: Any) -> int:
    return int(numpy.frombuffer(buffer, numpy.uint8).__array_interface__["data"][0])


async def test_core_gets_the_mapping_itself(both, kserve, shm, monkeypatch):
    """Neither protocol copies a large input on its way to the core, nor an output behind it."""
    app, rpc = both
    buffers: list[Any] = []
    infer = kserve.server.infer

    def recorded(name: str, inputs: Any, **fields: Any) -> Any:
        buffers.append(inputs["IN"][2])
        buffers.extend(each.memory for each in fields["options"].outputs)
        return infer(name, inputs, **fields)

    monkeypatch.setattr(kserve.server, "infer", recorded)
    response = await app.infer("one", tensor(0, MIB), outputs=[echo(2 * MIB, MIB)])
    assert response.status_code == 200, response.text
    await rpc.ask("ModelInfer", message(0, MIB, out=(2 * MIB, MIB)))

    [(begin, end)] = mappings(shm.key)
    expected = [begin, begin + 2 * MIB]
    assert [address(each) for each in buffers] == expected * 2
    assert end - begin == 4 * MIB
    assert shm.at(2 * MIB, 12) == VALUES
