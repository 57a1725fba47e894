"""The core in the tests' own process, with vLLM and the demo model."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from openai_frontend.triton import Options, Server
from tests.gateway_process import ROOT


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model twice: as it is, and generating through AsyncLLM."""
    folder = tmp_path_factory.mktemp("repository")
    for name, step_loop in (("demo", "true"), ("demo-async-llm", "false")):
        shutil.copytree(ROOT / "model_repository" / "demo", folder / name)
        config = folder / name / "config.pbtxt"
        added = f'parameters {{ key: "step_loop" value: {{ string_value: "{step_loop}" }} }}\n'
        config.write_text(config.read_text() + added)
    return folder


# One for each module: the in-process backend serves one core at a time, and some bring their own.
@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(repository: Path) -> AsyncIterator[Server]:
    started = Server(Options(model_repositories=[repository], model_control_mode="explicit"))
    await started.start()
    yield started
    await started.stop()
