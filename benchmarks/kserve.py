"""KServe's protocol over HTTP and gRPC: CPU time of the server's process for a request to an
identity model of the Python backend, and for a streamed token of the mock engine.

`python -m benchmarks.kserve [--store]` measures only this. The stub of the Python backend is a
process of its own and does not count.
"""

import argparse
import asyncio
import contextlib
import json
import struct
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import httpx

from benchmarks import machine, mock_repository, process_stat, results, server_process
from benchmarks.request import PACED_MODEL
from benchmarks.server_process import ServerProcess
from benchmarks.summary import Summary
from openai_frontend.kserve.grpc.messages import INFERENCE, methods
from tests.ports import free_port

_IDENTITY = """\
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
"""
_IDENTITY_MODEL = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())])
                for r in requests]
"""
_ELEMENTS = 16
_CALLERS, _STREAMS = 8, 64
_MESSAGE_BYTES = 170  # of a streamed token, with its model, id and parameters
_ROUNDS = 3
_FLOOR = "kserve_us_per_token_floor"


@dataclass(frozen=True, slots=True)
class Amount:
    """How much one figure is measured with."""

    requests: int = 500  # of each caller
    tokens: int = 300  # of each stream, at 100 a second


_METHODS = methods(INFERENCE)
_TENSOR = struct.pack(f"<{_ELEMENTS}f", *range(_ELEMENTS))

Ask = Callable[[], Awaitable[int]]  # sends a request, and returns the number of responses


def text(value: str) -> bytes:
    """One element of a BYTES tensor."""
    data = value.encode()
    return struct.pack("<I", len(data)) + data


class Requests:
    """The kinds of requests that are compared."""

    def __init__(
        self, client: httpx.AsyncClient, channel: grpc.aio.Channel, amount: Amount
    ) -> None:
        self._client = client
        self._amount = amount
        infer, stream = _METHODS["ModelInfer"], _METHODS["ModelStreamInfer"]
        self._infer = channel.unary_unary(infer.path)
        self._stream = channel.stream_stream(stream.path)
        tensor = infer.request(model_name="identity")
        tensor.inputs.add(name="IN", datatype="FP32", shape=[_ELEMENTS])
        tensor.raw_input_contents.append(_TENSOR)
        self._tensor = tensor.SerializeToString()
        prompt = stream.request(model_name=PACED_MODEL)
        for name, datatype in (("text_input", "BYTES"), ("stream", "BOOL")):
            prompt.inputs.add(name=name, datatype=datatype, shape=[1])
        prompt.inputs.add(name="sampling_parameters", datatype="BYTES", shape=[1])
        options = json.dumps({"max_tokens": amount.tokens})
        prompt.raw_input_contents.extend([text("hi"), b"\x01", text(options)])
        self._prompt = prompt.SerializeToString()

    async def json(self) -> int:
        """A tensor as JSON."""
        tensor = {"name": "IN", "datatype": "FP32", "shape": [_ELEMENTS]}
        body = {"inputs": [{**tensor, "data": list(range(_ELEMENTS))}]}
        response = await self._client.post("/v2/models/identity/infer", json=body)
        response.raise_for_status()
        return 1

    async def binary(self) -> int:
        """A tensor as bytes behind JSON, both ways."""
        size = {"binary_data_size": len(_TENSOR)}
        tensor = {"name": "IN", "datatype": "FP32", "shape": [_ELEMENTS], "parameters": size}
        body = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
        head = json.dumps(body).encode()
        response = await self._client.post(
            "/v2/models/identity/infer",
            content=head + _TENSOR,
            headers={
                "content-type": "application/octet-stream",
                "inference-header-content-length": str(len(head)),
            },
        )
        response.raise_for_status()
        return 1

    async def grpc(self) -> int:
        """ModelInfer."""
        await self._infer(self._tensor)
        return 1

    async def chat(self) -> int:
        """Chunks of OpenAI's API."""
        messages = [{"role": "user", "content": "hi"}]
        return await self._events("/v1/chat/completions", model=PACED_MODEL, messages=messages)

    async def generate_stream(self) -> int:
        """Events of KServe's protocol."""
        return await self._events(f"/v2/models/{PACED_MODEL}/generate_stream", text_input="hi")

    async def _events(self, path: str, **fields: Any) -> int:
        body = {"stream": True, "max_tokens": self._amount.tokens, **fields}
        events = 0
        async with self._client.stream("POST", path, json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                events += line.startswith("data:")
        return events

    async def stream(self) -> int:
        """ModelStreamInfer."""
        messages = 0
        async for _ in self._stream(iter([self._prompt])):
            messages += 1
        return messages


@dataclass(frozen=True, slots=True)
class Kind:
    """One figure."""

    name: str
    title: str
    ask: Callable[[Requests], Awaitable[int]]
    streams: bool = False


KINDS = (
    Kind("kserve_us_per_request_json", "infer over HTTP, JSON", Requests.json),
    Kind("kserve_us_per_request_binary", "infer over HTTP, binary", Requests.binary),
    Kind("kserve_us_per_request_grpc", "ModelInfer over gRPC", Requests.grpc),
    Kind("kserve_us_per_token_chat", "token of a chat over HTTP", Requests.chat, streams=True),
    Kind("kserve_us_per_token_generate", "token of generate_stream over HTTP",
         Requests.generate_stream, streams=True),
    Kind("kserve_us_per_token_grpc", "token of ModelStreamInfer over gRPC", Requests.stream,
         streams=True),
)  # fmt: skip
TITLES = {kind.name: kind.title for kind in KINDS} | {
    _FLOOR: "token of a bare server of grpcio (floor)"
}
# The goals: CPU of gRPC as a multiple of HTTP's
RATIOS = {
    "kserve_grpc_per_http_request": ("kserve_us_per_request_grpc", "kserve_us_per_request_binary"),
    "kserve_grpc_per_chat_token": ("kserve_us_per_token_grpc", "kserve_us_per_token_chat"),
}


async def cpu_us(pid: int, ask: Ask, callers: int, each: int) -> float:
    """CPU time of a process for each response."""

    async def caller() -> int:
        return sum([await ask() for _ in range(each)])

    before = process_stat.cpu_s(pid)
    responses = sum(await asyncio.gather(*[caller() for _ in range(callers)]))
    return (process_stat.cpu_s(pid) - before) / responses * 1e6


@contextlib.asynccontextmanager
async def connected(http_port: int, grpc_port: int, amount: Amount) -> AsyncIterator[Requests]:
    """Clients of a server."""
    url, limits = f"http://127.0.0.1:{http_port}", httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as client,
        grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel,
    ):
        yield Requests(client, channel, amount)


async def measure(server: ServerProcess, grpc_port: int, amount: Amount) -> dict[str, float]:
    """All kinds in turn."""
    found = {}
    async with connected(server.port, grpc_port, amount) as requests:
        for kind in KINDS:
            callers, each = (_STREAMS, 1) if kind.streams else (_CALLERS, amount.requests)
            ask = partial(kind.ask, requests)
            found[kind.name] = await cpu_us(server.pid, ask, callers, each)
    return found


async def _measure_floor(server: ServerProcess, grpc_port: int, amount: Amount) -> float:
    async with connected(server.port, grpc_port, amount) as requests:
        return await cpu_us(server.pid, requests.stream, _STREAMS, 1)


def rounds(core: int | None, amount: Amount, count: int) -> Iterator[dict[str, float]]:
    """The figures of each round, after one that warms up. `core` is that of the servers."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        repository = mock_repository.write(Path(folder) / "models")
        write_identity(repository)
        options = (f"--grpc-port={port}",)
        with server_process.gateway(repository, core, options=options) as server:
            asyncio.run(measure(server, port, Amount(20, 20)))
            for _ in range(count):
                found = asyncio.run(measure(server, port, amount))
                found |= {name: found[one] / found[two] for name, (one, two) in RATIOS.items()}
                yield found | {_FLOOR: _floor(core, amount)}


def _floor(core: int | None, amount: Amount) -> float:
    port, ready_port = free_port(), free_port()
    options = [str(each) for each in (port, ready_port, amount.tokens, _MESSAGE_BYTES)]
    arguments = ["-m", "benchmarks.rpc_floor", *options]
    with server_process.ServerProcess(arguments, ready_port, core) as server:
        return asyncio.run(_measure_floor(server, port, amount))


def write_identity(repository: Path) -> None:
    """The model of tensor requests."""
    version = repository / "identity" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(_IDENTITY_MODEL)
    (version.parent / "config.pbtxt").write_text(_IDENTITY)


def table(found: Mapping[str, Summary]) -> str:
    """Markdown, under what it holds for."""
    about = ", ".join(f"{name} {value}" for name, value in machine.describe().items())
    amount = Amount()
    head = [
        "# KServe's protocol over HTTP and gRPC",
        "",
        f"`python -m benchmarks.kserve --store`, commit {machine.commit()}, {about}, grpcio "
        f"{grpc.__version__}. CPU time of the server's process, median of {_ROUNDS} rounds: "
        f"{_CALLERS} callers of an identity model of the Python backend (FP32, {_ELEMENTS} "
        f"elements), and {_STREAMS} streams of {amount.tokens} tokens at 100 tokens/s.",
        "",
        "| CPU per | us | range |",
        "|---|--:|--:|",
    ]
    rows = [
        f"| {TITLES[name]} | {each.median:,.0f} | {each.low:,.0f} to {each.high:,.0f} |"
        for name, each in found.items()
        if name in TITLES
    ]
    request, token = (found[name].median for name in RATIOS)
    end = (
        f"gRPC costs {request:.1f} times HTTP (binary) per request, and {token:.1f} times a chat "
        "per token."
    )
    return "\n".join([*head, *rows, "", end]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.kserve", description=__doc__)
    parser.add_argument("--store", action="store_true", help="write JSON and table to results")
    store = parser.parse_args().store
    each = list(rounds(None, Amount(), _ROUNDS))
    found = {name: Summary.of([one[name] for one in each]) for name in each[0]}
    text_table = table(found)
    print(text_table)
    if store:
        figures = {name: [one.median, one.low, one.high] for name, one in found.items()}
        results.store(results.FOLDER, "kserve", figures, text_table)


if __name__ == "__main__":
    main()
