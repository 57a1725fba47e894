"""The scenarios of KServe's protocol, over HTTP and gRPC: tensors, streams, shared memory."""

import json
import random
import struct
import uuid
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy

from scripts.soak import models
from scripts.soak.client import Client, Unexpected, expect
from tests.api.kserve.grpc_client import request

SHARED = Path("/dev/shm")  # noqa: S108  where shm_open has its objects
KIB = 1024


def _bytes_tensor(*texts: str) -> tuple[str, list[int], bytes]:
    packed = b"".join(struct.pack("<I", len(text)) + text.encode() for text in texts)
    return ("BYTES", [len(texts)], packed)


def _prompt(model: str, tokens: int) -> Any:
    sampling = json.dumps({"max_tokens": tokens, "ignore_eos": True})
    return request(
        model,
        {
            "text_input": _bytes_tensor("a"),
            "stream": ("BOOL", [1], b"\x01"),
            "sampling_parameters": _bytes_tensor(sampling),
        },
    )


async def kserve_http(client: Client, chance: random.Random) -> None:
    """Pass small and large tensors of bytes through two Python models, after the JSON."""
    _, shape, packed = _bytes_tensor("a", "b" * chance.choice([1, 100, 100 * KIB]))
    placed = {"binary_data_size": len(packed)}
    tensor = {"name": "QUESTION", "shape": shape, "datatype": "BYTES", "parameters": placed}
    output = {"name": "REPLY", "parameters": {"binary_data": True}}
    head = json.dumps({"inputs": [tensor], "outputs": [output]}).encode()
    answer = await client.send_binary("/v2/models/ensemble/infer", head, packed)
    expect(answer, packed, "tensor")


async def kserve_grpc(client: Client, chance: random.Random) -> None:
    """Pass the same tensors over gRPC."""
    tensor = _bytes_tensor("a", "b" * chance.choice([1, 100, 100 * KIB]))
    answer = await client.rpc.ask("ModelInfer", request("ensemble", {"QUESTION": tensor}))
    expect(answer.raw_output_contents[0], tensor[2], "tensor")


async def generate_stream(client: Client, chance: random.Random) -> None:
    """Read a stream of Triton's generate extension to its end, or close it midway."""
    model, tokens = chance.choice([("talker", models.ANSWER_TOKENS), ("slow", 2000)])
    body: dict[str, Any] = {"text_input": "a", "parameters": {"max_tokens": tokens}}
    text = ""
    async with client.stream(f"/v2/models/{model}/generate_stream", **body) as events:
        async for event in events:
            text += json.loads(event)["text_output"]
            if model == "slow":
                return
    expect(text, models.TEXT * tokens, "stream")


async def grpc_stream(client: Client, chance: random.Random) -> None:
    """Send several requests on one stream, one of them bad; each has its own answer."""
    count = chance.randint(1, 4)
    sent = [_prompt("talker", models.ANSWER_TOKENS) for _ in range(count)]
    bad = request("talker", {"nothing": _bytes_tensor("a")})
    texts, errors = "", 0
    async for response in client.rpc.stream([*sent, bad]):
        errors += bool(response.error_message)
        for content in response.infer_response.raw_output_contents[:1]:
            texts += content[4:].decode()
    expect((errors, len(texts)), (1, count * len(models.TEXT) * models.ANSWER_TOKENS), "stream")


async def grpc_cancel(client: Client, chance: random.Random) -> None:
    """Cancel a call before its first answer or after some."""
    call = client.rpc.stream([_prompt("slow", 2000)])
    for _ in range(chance.randint(0, 5)):
        await call.read()
    call.cancel()


async def shared_memory(client: Client, chance: random.Random) -> None:
    """Register memory over one protocol, use it over either, and unregister it over the other."""
    name = f"soak-{uuid.UUID(int=chance.getrandbits(128)).hex}"
    size = chance.choice([64, 256 * KIB])
    data = numpy.frombuffer(chance.randbytes(size), numpy.uint8)
    (SHARED / name).write_bytes(data.tobytes() + bytes(size))
    try:
        await _use_region(client, chance, name, data)
    finally:
        (SHARED / name).unlink()


async def _use_region(client: Client, chance: random.Random, name: str, data: Any) -> None:
    size = len(data)
    url = f"/v2/systemsharedmemory/region/{name}"
    over_http = chance.random() < 0.5
    if over_http:
        await client.post(f"{url}/register", key=f"/{name}", byte_size=2 * size)
    else:
        region = {"name": name, "key": f"/{name}", "byte_size": 2 * size}
        await client.rpc.ask("SystemSharedMemoryRegister", **region)
    place = {"shared_memory_region": name, "shared_memory_byte_size": size}
    tensor = {"name": "IN", "shape": [size], "datatype": "UINT8", "parameters": place}
    output = {"name": "OUT", "parameters": {**place, "shared_memory_offset": size}}
    await client.post("/v2/models/bytes/infer", inputs=[tensor], outputs=[output])
    expect((SHARED / name).read_bytes()[size:] == data.tobytes(), True, "output in the region")
    if over_http:
        await client.rpc.ask("SystemSharedMemoryUnregister", name=name)
    else:
        await client.post(f"{url}/unregister")


BAD: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("ModelInfer", {"model_name": "nobody"}, "NOT_FOUND"),
    ("ModelInfer", {"model_name": "ensemble"}, "INVALID_ARGUMENT"),
    ("ModelInfer", {"model_name": "talker", "raw_input_contents": [b"x"]}, "INVALID_ARGUMENT"),
    ("ModelMetadata", {"name": "nobody"}, "NOT_FOUND"),
    ("SystemSharedMemoryRegister", {"name": "a", "key": "/nothing", "byte_size": 8},
     "INVALID_ARGUMENT"),
    ("CudaSharedMemoryRegister", {"name": "a"}, "UNIMPLEMENTED"),
)  # fmt: skip
BAD_BODIES = (
    b"{",
    b'{"inputs":[{"name":"QUESTION","shape":[-1],"datatype":"BYTES","data":[]}]}',
    b'{"inputs":[{"name":"QUESTION","shape":[9],"datatype":"BYTES","data":["a"]}]}',
    b'{"inputs":[{"name":"QUESTION","shape":[1],"datatype":"FP32","data":[1]}]}',
)


async def bad_tensors(client: Client, chance: random.Random) -> None:
    """Expect the code of each kind of bad request."""
    if chance.random() < 0.5:
        content, headers = chance.choice(BAD_BODIES), {"content-type": "application/json"}
        await client.send("/v2/models/ensemble/infer", content, 400, **headers)
        return
    name, fields, code = chance.choice(BAD)
    try:
        await client.rpc.ask(name, **fields)
    except grpc.aio.AioRpcError as error:
        expect(error.code().name, code, name)
    else:
        raise Unexpected(f"{name} succeeded")
