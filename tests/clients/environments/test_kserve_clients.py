"""KServe's own clients, unmodified, over HTTP and gRPC."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.api.kserve.conftest import running, write_models
from tests.api.kserve.grpc_client import rpc_server
from tests.clients.environments import Environment

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

FLOATS = [[1.5, -2.0, 0.25], "7", "one", "FP32", [3]]
# The rows of the program, with JSON or typed contents, and with raw bytes
EXPECTED = {
    "health": [True, True, True],
    "floats": [FLOATS, FLOATS],
    "texts": [["a", "é", ""], ["a", "é", ""]],
    "half": [-1.5, 0.0, 65504.0],
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def results(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    repository = tmp_path_factory.mktemp("kserve_clients")
    write_models(repository)
    async with running(repository) as kserve, rpc_server(kserve.app) as address:
        ask = Environment("kserve").ask
        yield await asyncio.to_thread(ask, "drive_kserve", kserve.url, address)


@pytest.mark.parametrize("row", EXPECTED)
async def test_rows(results, row):
    """HTTP and gRPC return what is expected."""
    assert [each[row] for each in results] == [EXPECTED[row]] * 2


async def test_errors(results):
    """A mistake has one message: in httpx's error over HTTP, as the details over gRPC."""
    over_http, over_grpc = (each["errors"] for each in results)

    assert [each.partition(", '4")[0] for each in over_http] == over_grpc
    assert len({*over_grpc}) == 3
    assert "no error" not in over_grpc
