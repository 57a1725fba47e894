"""KServe's own clients over HTTP and over gRPC; prints the results as JSON."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig
from kserve.protocol.infer_type import RequestedOutput

FLOATS = np.array([1.5, -2, 0.25], np.float32)
TEXTS = np.array([b"a", "é".encode(), b""], object)


@dataclass
class Client:
    """What both clients do, in one form."""

    infer: Callable[[InferRequest], Awaitable[Any]]
    is_server_live: Callable[[], Awaitable[bool]]
    is_server_ready: Callable[[], Awaitable[bool]]
    is_model_ready: Callable[[str], Awaitable[bool]]

    @classmethod
    def of_http(cls, client: InferenceRESTClient, url: str) -> "Client":
        async def infer(request: InferRequest) -> Any:
            return await client.infer(url, request, request.model_name)

        calls = (client.is_server_live, client.is_server_ready, client.is_model_ready)
        return cls(infer, *[partial(each, url) for each in calls])

    @classmethod
    def of_grpc(cls, client: InferenceGRPCClient) -> "Client":
        return cls(
            client.infer, client.is_server_live, client.is_server_ready, client.is_model_ready
        )


def request(model: str, *inputs: InferInput, **options: Any) -> InferRequest:
    return InferRequest(model, list(inputs), **options)


def tensor(name: str, datatype: str, array: Any, *, binary: bool) -> InferInput:
    made = InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def shown(response: Any) -> list[Any]:
    return [each.decode() if isinstance(each, bytes) else each
            for each in response.outputs[0].as_numpy().flatten().tolist()]  # fmt: skip


async def floats(client: Client, binary: bool) -> list[Any]:
    inputs = tensor("IN", "FP32", FLOATS, binary=binary)
    response = await client.infer(
        request("one", inputs, request_id="7", request_outputs=[RequestedOutput("IN_echo")])
    )
    output = response.outputs[0]
    return [shown(response), response.id, response.model_name, output.datatype, output.shape]


async def texts(client: Client, binary: bool) -> list[Any]:
    return shown(await client.infer(request("all", tensor("BYTES", "BYTES", TEXTS, binary=binary))))


async def half(client: Client) -> list[Any]:
    """A datatype that exists only as raw bytes."""
    array = np.array([-1.5, 0, 65504], np.float16)
    sent = request("all", tensor("FP16", "FP16", array, binary=True),
                   parameters={"binary_data_output": True})  # fmt: skip
    return shown(await client.infer(sent))


async def health(client: Client) -> list[bool]:
    return [
        await client.is_server_live(), await client.is_server_ready(),
        await client.is_model_ready("one"),
    ]  # fmt: skip


def mistakes() -> Iterator[InferRequest]:
    yield request("absent", tensor("IN", "FP32", FLOATS, binary=True), request_id="1")
    yield request("one", tensor("OTHER", "FP32", FLOATS, binary=True), request_id="2")
    numbers = FLOATS.astype(np.int32)
    yield request("one", tensor("IN", "INT32", numbers, binary=True), request_id="3")


async def errors(client: Client, message: Callable[[Exception], str]) -> list[str]:
    found = []
    for each in mistakes():
        try:
            await client.infer(each)
            found.append("no error")
        except Exception as error:  # noqa: BLE001  each client has errors of its own
            found.append(message(error))
    return found


async def rows(client: Client, message: Callable[[Exception], str]) -> dict[str, Any]:
    return {
        "health": await health(client),
        "floats": [await floats(client, binary) for binary in (False, True)],
        "texts": [await texts(client, binary) for binary in (False, True)],
        "half": await half(client),
        "errors": await errors(client, message),
    }


async def main(http: str, grpc: str) -> Sequence[Any]:
    config = RESTConfig(protocol="v2", retries=0)
    async with InferenceRESTClient(config) as rest, InferenceGRPCClient(grpc, retries=2) as rpc:
        return [
            await rows(Client.of_http(rest, http), str),
            await rows(Client.of_grpc(rpc), lambda error: str(getattr(error, "details", str)())),
        ]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(*sys.argv[1:]))))
