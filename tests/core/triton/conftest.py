"""The event loops of the core's tests, and a core with a model that returns its inputs."""

import asyncio
import json
from typing import Any

import pytest
import uvloop

from openai_frontend.triton import inprocess

FACTORIES = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
ON_BOTH = ("test_streams.py", "test_cancel.py")


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Any]:
    """uvloop, as in the gateway; asyncio's loop too if the order of callbacks matters."""
    both = item.path.name in ON_BOTH
    return FACTORIES if both else {"uvloop": FACTORIES["uvloop"]}


@pytest.fixture
def start_echo(repository, start_server, monkeypatch):
    """Starts a core with the model `echo` and the given inputs: name -> (datatype, dims)."""
    monkeypatch.setattr(inprocess, "RUNTIME", "tests.core.triton.echo_runtime")

    async def start(optional=False, **inputs):
        declared = [
            {"name": name, "data_type": f"TYPE_{dtype}".replace("BYTES", "STRING"), "dims": dims}
            | ({"optional": True} if optional else {})
            for name, (dtype, dims) in inputs.items()
        ]
        server = await start_server()
        config = {"backend": "inprocess", "input": declared}
        files = {"1/none": b""}
        await server.load_model("echo", config=json.dumps(config), model_files=files)
        return server

    return start
