"""Reports of an engine's failures, which must not fail themselves."""

import pytest

from openai_frontend.triton import _core, error_codes, inprocess
from tests.core.triton import puppet
from tests.core.triton.generation_inputs import text
from tests.core.triton.puppet import Puppet


@pytest.fixture
async def server(start_server, monkeypatch):
    """A core with the model `puppet`."""
    monkeypatch.setattr(inprocess, "RUNTIME", puppet.__name__)
    server = await start_server()
    async with puppet.model(server):
        yield server


async def test_message_with_a_lone_surrogate(server):
    """It is escaped."""
    stream = server.infer("puppet", {"text_input": text("go")})
    execution = await Puppet.arrived.get()

    execution.fail(error_codes.INTERNAL, "é \udcff")

    [response] = stream._native.take()
    assert response.error == (error_codes.INTERNAL, "é \\udcff")


async def test_report_that_fails_leaves_the_other_requests(server, monkeypatch):
    """Of the same wake-up."""

    class Broken(Puppet):
        def start(self, execution):
            raise ValueError("failed")

    executions = [(Broken(), object()), (Puppet(), object())]
    monkeypatch.setattr(_core, "drain_executions", lambda: executions)

    inprocess._on_executions()  # `object` has no `fail`, so the report raises

    assert Puppet.arrived.get_nowait() is executions[1][1]
