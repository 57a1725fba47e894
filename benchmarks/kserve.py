"""KServe's protocol over HTTP and gRPC: CPU time of the server's process for a request to an
identity model of the Python backend, and for a streamed response of the mock engine.

`python -m benchmarks.kserve [--store]`. The stub of the Python backend is a process of its own and
does not count.
"""

import argparse
import asyncio
import contextlib
import json
import struct
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import grpc.aio
import httpx

from benchmarks import machine, mock_repository, process_stat, results, server_process
from benchmarks.request import PACED_MODEL
from benchmarks.summary import Summary
from openai_frontend.kserve.grpc.messages import INFERENCE, methods

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
_CALLERS, _REQUESTS = 8, 4000
_STREAMS, _TOKENS = 64, 300
_ROUNDS = 3

_METHODS = methods(INFERENCE)
_TENSOR = struct.pack(f"<{_ELEMENTS}f", *range(_ELEMENTS))

Ask = Callable[[], Awaitable[int]]  # sends a request, and returns the number of responses


def text(value: str) -> bytes:
    """One element of a BYTES tensor."""
    data = value.encode()
    return struct.pack("<I", len(data)) + data


class Requests:
    """The kinds of requests that are compared."""

    def __init__(self, client: httpx.AsyncClient, channel: grpc.aio.Channel) -> None:
        self._client = client
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
        options = json.dumps({"max_tokens": _TOKENS})
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

    async def generate_stream(self) -> int:
        """Events of HTTP."""
        body = {"text_input": "hi", "stream": True, "max_tokens": _TOKENS}
        path, events = f"/v2/models/{PACED_MODEL}/generate_stream", 0
        async with self._client.stream("POST", path, json=body) as response:
            async for line in response.aiter_lines():
                events += line.startswith("data:")
        return events

    async def stream(self) -> int:
        """ModelStreamInfer."""
        messages = 0
        async for _ in self._stream(iter([self._prompt])):
            messages += 1
        return messages

    def kinds(self) -> Mapping[str, tuple[Ask, int, int]]:
        """Title -> what is sent, by how many callers, and how often by each."""
        each = _REQUESTS // _CALLERS
        return {
            "request: infer over HTTP, JSON": (self.json, _CALLERS, each),
            "request: infer over HTTP, binary": (self.binary, _CALLERS, each),
            "request: ModelInfer over gRPC": (self.grpc, _CALLERS, each),
            "streamed response: generate_stream over HTTP": (self.generate_stream, _STREAMS, 1),
            "streamed response: ModelStreamInfer over gRPC": (self.stream, _STREAMS, 1),
        }


async def cpu_us(pid: int, ask: Ask, callers: int, each: int) -> float:
    """CPU time of a process for each response."""

    async def caller() -> int:
        return sum([await ask() for _ in range(each)])

    before = process_stat.cpu_s(pid)
    responses = sum(await asyncio.gather(*[caller() for _ in range(callers)]))
    return (process_stat.cpu_s(pid) - before) / responses * 1e6


@contextlib.asynccontextmanager
async def connected(http_port: int, grpc_port: int) -> AsyncIterator[Requests]:
    """Clients of a server."""
    url, limits = f"http://127.0.0.1:{http_port}", httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as client,
        grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel,
    ):
        yield Requests(client, channel)


async def measure(pid: int, http_port: int, grpc_port: int) -> dict[str, Summary]:
    """All kinds in turn, in each round; the first round warms up."""
    found: dict[str, list[float]] = {}
    async with connected(http_port, grpc_port) as requests:
        for number in range(_ROUNDS + 1):
            for title, (ask, callers, each) in requests.kinds().items():
                figure = await cpu_us(pid, ask, callers, each)
                if number:
                    found.setdefault(title, []).append(figure)
    return {title: Summary.of(values) for title, values in found.items()}


def write_identity(repository: Path) -> None:
    """The model of tensor requests."""
    version = repository / "identity" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(_IDENTITY_MODEL)
    (version.parent / "config.pbtxt").write_text(_IDENTITY)


def table(found: Mapping[str, Summary]) -> str:
    """Markdown, under what it holds for."""
    about = ", ".join(f"{name} {value}" for name, value in machine.describe().items())
    head = [
        "# KServe's protocol over HTTP and gRPC",
        "",
        f"`python -m benchmarks.kserve --store`, commit {machine.commit()}, {about}, grpcio "
        f"{grpc.__version__}. CPU time of the server's process, median of {_ROUNDS} rounds: "
        f"{_CALLERS} callers of an identity model of the Python backend (FP32, {_ELEMENTS} "
        f"elements), and {_STREAMS} streams of {_TOKENS} tokens at 100 tokens/s.",
        "",
        "| CPU per | us | range |",
        "|---|--:|--:|",
    ]
    rows = [
        f"| {title} | {each.median:,.0f} | {each.low:,.0f} to {each.high:,.0f} |"
        for title, each in found.items()
    ]
    return "\n".join([*head, *rows]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.kserve", description=__doc__)
    parser.add_argument("--store", action="store_true", help="write JSON and table to results")
    store = parser.parse_args().store
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        repository = mock_repository.write(Path(folder) / "models")
        write_identity(repository)
        port = server_process.free_port()
        options = (f"--grpc-port={port}",)
        with server_process.gateway(repository, None, options=options) as server:
            found = asyncio.run(measure(server.pid, server.port, port))
    text_table = table(found)
    print(text_table)
    if store:
        figures = {title: [each.median, each.low, each.high] for title, each in found.items()}
        results.store(results.FOLDER, "kserve", figures, text_table)


if __name__ == "__main__":
    main()
