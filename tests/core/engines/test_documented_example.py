"""The engine of docs/engines.md, as a reader would run it."""

import pytest

from openai_frontend.triton import Options, Server
from tests.gateway_process import ROOT
from tests.vllm.requests import answer

EXAMPLES = ROOT / "docs" / "examples"


@pytest.fixture
async def shout(monkeypatch: pytest.MonkeyPatch, nothing_left):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    server = Server(Options(model_repositories=[EXAMPLES / "model_repository"]))
    await server.start()
    yield server
    await server.stop()


async def test_the_documented_engine(shout: Server):
    """The example engine streams the prompt in capitals and stops by itself."""
    result = await answer(shout, "shout", "say it again")

    assert (result.text, result.finish_reason) == ("SAY IT AGAIN", "stop")
