"""The core in the tests' own process, with vLLM and the demo model."""

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from openai_frontend.engines.engine import ModelSpec
from openai_frontend.engines.vllm import arguments
from openai_frontend.triton import Options, Server
from tests.gateway_process import ROOT


@pytest.fixture(scope="package", autouse=True)
def vllm_is_set_up() -> None:
    """Import vLLM and build an engine config before the first module.

    Both set environment variables of the process, and each module must leave those unchanged.
    """
    demo = ROOT / "model_repository" / "demo"
    given = json.loads((demo / "1" / "model.json").read_text())
    arguments.set_environment()
    model = ModelSpec(name="demo", version=1, folder=demo, parameters={}, arguments=given)
    arguments.engine_arguments(model).create_engine_config()


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model in the step loop (`demo`) and through AsyncLLM (`demo-async-llm`)."""
    folder = tmp_path_factory.mktemp("repository")
    for name, step_loop in (("demo", "true"), ("demo-async-llm", "false")):
        shutil.copytree(ROOT / "model_repository" / "demo", folder / name)
        config = folder / name / "config.pbtxt"
        added = f'parameters {{ key: "step_loop" value: {{ string_value: "{step_loop}" }} }}\n'
        config.write_text(config.read_text() + added)
    return folder


class Standing:
    """One core that the test modules share. The in-process backend serves one core at a time, so
    modules with their own core stop this one first (`aside`).
    """

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._server: Server | None = None

    async def serve(self) -> Server:
        """Start the core if it does not run."""
        if self._server is None:
            server = Server(
                Options(model_repositories=[self._repository], model_control_mode="explicit")
            )
            await server.start()
            self._server = server
        return self._server

    async def stop(self) -> None:
        """Stop the core. The next module that needs it starts another."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop()


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def standing(repository: Path) -> AsyncIterator[Standing]:
    """Stopped before the tests of other folders start cores of their own."""
    core = Standing(repository)
    yield core
    await core.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(standing: Standing) -> Server:
    """A core that serves the demo model in the step loop and through AsyncLLM."""
    return await standing.serve()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def aside(standing: Standing) -> None:
    """Stop the shared core, so that the module can start its own."""
    await standing.stop()
