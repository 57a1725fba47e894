"""Why the process of an engine failed, as the gateway reports it."""

import logging
import logging.config
import shutil

import psutil
import pytest

from openai_frontend import errors
from openai_frontend.engines.vllm.processes.failures import ReportingSpawnContext, collected
from openai_frontend.models.loader import ModelLoader
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.triton import Server
from tests.gateway_process import ROOT
from tests.vllm.conftest import Models, needs_fork_server


def fail(message: str) -> None:
    """End as vLLM's engines do, which first configures its loggers."""
    logging.config.dictConfig({"version": 1, "loggers": {"vllm": {}}})
    try:
        raise ValueError(message)
    except ValueError:
        logging.getLogger("vllm.v1.engine.core").exception("EngineCore failed to start.")
        raise


def succeed(message: str) -> None:
    """End without a failure."""


@pytest.mark.parametrize(
    ("target", "expected"),
    [(fail, "it died: ValueError: no blocks"), (succeed, "it died")],
    ids=["fails", "succeeds"],
)
def test_exception_of_a_process(target, expected):
    """The gateway gets it with the process's type and message."""
    process = ReportingSpawnContext().Process(target=target, args=("no\nblocks",))
    with collected() as failures:
        process.start()
    process.join(60)

    assert failures.describe("it died") == expected
    before = psutil.Process().num_fds()
    failures.close()
    assert psutil.Process().num_fds() == before - 1


def test_processes_of_another_engine():
    """Those that another thread, or a later call, starts report nothing."""
    with collected() as failures:
        pass
    process = ReportingSpawnContext().Process(target=fail, args=("no blocks",))
    process.start()
    process.join(60)

    assert failures.first() is None


@pytest.mark.engine
@pytest.mark.slow
@needs_fork_server
@pytest.mark.asyncio(loop_scope="session")
async def test_model_whose_engine_fails_to_start(server: Server, models_beside: Models) -> None:
    """Its card and the error of a request have the cause, not where to look for it."""
    folder = models_beside.repository / "no-weights"
    shutil.copytree(ROOT / "model_repository" / "demo", folder)
    for weights in folder.rglob("*.safetensors"):
        weights.unlink()
    registry = ModelRegistry(server, ModelLoader(server))
    try:
        with pytest.raises(errors.GatewayError):
            await server.load_model("no-weights")
        await registry.refresh()
        with pytest.raises(errors.ModelFailed) as refused:
            registry.get("no-weights")
        card = registry.card("no-weights")
    finally:
        registry.close()
        shutil.rmtree(folder)

    assert "vLLM's engine process did not start: RuntimeError: Cannot find any" in str(card.error)
    assert str(card.error) in refused.value.message
