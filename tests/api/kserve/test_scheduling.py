"""What the core's schedulers do for models of the Python backend, over HTTP and gRPC: priorities
and timeouts of the dynamic batcher, warm-up, and the rate limiter.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest
import pytest_asyncio

from tests.api.kserve.conftest import HttpClient, tensor
from tests.api.kserve.grpc_client import RpcClient
from tests.api.kserve.test_sequences import message, total
from tests.api.server.test_grpc_process import grpc_port
from tests.gateway_process import GatewayProcess

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

# Returns the number of the execution; -1 waits until the file `open` exists
COUNTING = """
import pathlib
import time

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.count = 0

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        self.count += 1
        number = self.count
        given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().item()
        folder = pathlib.Path(__file__).parent
        if given == -1:
            (folder / "begun").touch()
            while not (folder / "open").exists():
                time.sleep(0.001)
        out = numpy.array([[number]], numpy.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)])
"""
# Returns whether the other model of the pair runs too, for which it waits some milliseconds
MEETING = """
import pathlib
import time

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        own = args["model_name"]
        folder = pathlib.Path(__file__).parents[2]
        pair = own.partition("_")[0]
        self.own = folder / f"{own}.running"
        self.other = folder / f"{pair}_{'b' if own.endswith('a') else 'a'}.running"

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().item()
        end = time.monotonic() + given / 1000
        self.own.touch()
        while not (met := self.other.exists()) and time.monotonic() < end:
            time.sleep(0.001)
        if met:
            time.sleep(0.2)  # the other one looks too
        self.own.unlink()
        out = numpy.array([[met]], numpy.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)])
"""

BATCHER = """
dynamic_batching {
  priority_levels: 2 default_priority_level: 2
  default_queue_policy {
    timeout_action: REJECT allow_timeout_override: true default_timeout_microseconds: 600000000
  }
}
"""
WARM_UP = """
model_warmup [{
  name: "zeros" batch_size: 1
  inputs { key: "IN" value { data_type: TYPE_INT32 dims: [1] zero_data: true } }
}]
"""
LIMITED = """
instance_group [{
  kind: KIND_CPU count: 1
  rate_limiter { resources [{ name: "shared" global: true count: 1 }] priority: 1 }
}]
"""
MODELS = {
    "http": (COUNTING, BATCHER),
    "grpc": (COUNTING, BATCHER),
    "warm": (COUNTING, WARM_UP),
    "limited_a": (MEETING, LIMITED),
    "limited_b": (MEETING, LIMITED),
    "free_a": (MEETING, ""),
    "free_b": (MEETING, ""),
}

# A model, a number and parameters -> the model's number, or HTTP's status or gRPC's code
Ask = Callable[..., Awaitable[int | str]]
PROTOCOLS = ["http", "grpc"]
EXPIRED = {"http": 503, "grpc": "UNAVAILABLE"}


def write(repository: Path) -> None:
    output = 'output { name: "OUT" data_type: TYPE_INT32 dims: [1] }'
    for name, (source, more) in MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(source)
        (repository / name / "config.pbtxt").write_text(
            f'backend: "python" max_batch_size: 1\n{tensor("IN", "INT32", [1])}\n{output}\n{more}'
        )


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("scheduling")
    write(folder / "models")
    options = ("--grpc-port=0", "--rate-limit=execution_count")
    with GatewayProcess(folder / "models", folder / "log", *options) as gateway:
        gateway.wait_until_ready()
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kserve(process: GatewayProcess) -> AsyncIterator[HttpClient]:
    async with httpx.AsyncClient(base_url=process.url, timeout=60) as client:
        yield HttpClient(client)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def asks(process: GatewayProcess, kserve: HttpClient) -> AsyncIterator[dict[str, Ask]]:
    """By protocol."""

    async def over_http(model: str, number: int, **parameters: int) -> int | str:
        given = {"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [number]}
        response = await kserve.infer(model, given, parameters=parameters)
        if response.status_code != 200:
            return response.status_code
        return int(response.json()["outputs"][0]["data"][0])

    async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port(process)}") as channel:
        rpc = RpcClient(channel)

        async def over_grpc(model: str, number: int, **parameters: int) -> int | str:
            try:
                return total(await rpc.ask("ModelInfer", message(model, number, parameters)))
            except grpc.aio.AioRpcError as error:
                return str(error.code().name)

        yield {"http": over_http, "grpc": over_grpc}


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110  no event tells
            await asyncio.sleep(0.01)


async def waiting(kserve: HttpClient, model: str) -> int:
    """Requests in the batcher's queue."""
    text = (await kserve.client.get("/metrics")).text
    found = re.findall(rf'nv_inference_pending_request_count{{model="{model}".*?}} (\d+)', text)
    return sum(map(int, found))


class Gate:
    """Holds the only instance of a model."""

    def __init__(self, folder: Path, ask: Ask, model: str) -> None:
        self._folder = folder
        self._ask, self._model = ask, model

    async def __aenter__(self) -> None:
        for name in ("begun", "open"):
            (self._folder / name).unlink(missing_ok=True)
        self._held = asyncio.ensure_future(self._ask(self._model, -1))

        async def begun() -> bool:
            return (self._folder / "begun").exists()

        await until(begun)

    async def __aexit__(self, *_: object) -> None:
        (self._folder / "open").touch()
        await self._held


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_higher_priority_goes_first(process, kserve, asks, protocol):
    """Level 1 overtakes level 2 and those without one, which came before."""
    ask, folder = asks[protocol], process.log.parent / "models" / protocol / "1"
    sent: list[Any] = []
    async with Gate(folder, ask, protocol):
        for parameters in ({}, {"priority": 2}, {"priority": 1}):
            sent.append(asyncio.ensure_future(ask(protocol, 1, **parameters)))
            await until(lambda: all_wait(kserve, protocol, len(sent)))
    default, low, high = await asyncio.gather(*sent)

    assert (default - high, low - high) == (1, 2)


async def all_wait(kserve: HttpClient, model: str, count: int) -> bool:
    return await waiting(kserve, model) == count


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_expired_requests_are_refused(process, kserve, asks, protocol):
    """Of two that wait in the batcher's queue, the one whose timeout has passed fails. Triton lets
    a request shorten the timeout of its level.
    """
    ask, folder = asks[protocol], process.log.parent / "models" / protocol / "1"
    async with Gate(folder, ask, protocol):
        short = asyncio.ensure_future(ask(protocol, 1, timeout=1000))
        endless = asyncio.ensure_future(ask(protocol, 1))
        await until(lambda: all_wait(kserve, protocol, 2))
        await asyncio.sleep(0.01)  # ten times the timeout

    assert await short == EXPIRED[protocol]
    assert isinstance(await endless, int)


async def test_warm_up_precedes_the_first_request(asks):
    """The model has run once before any client's request."""
    assert [await asks["http"]("warm", 0), await asks["grpc"]("warm", 0)] == [2, 3]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("pair", "wait_ms", "meet"), [("limited", 300, 0), ("free", 30_000, 1)])
async def test_rate_limiter(asks, protocol, pair, wait_ms, meet):
    """Models that need the only unit of a resource never run at once; others do."""
    ask = asks[protocol]
    found = await asyncio.gather(*[ask(f"{pair}_{each}", wait_ms) for each in "ab"])

    assert found == [meet, meet]
