"""The binding and the in-process backend with a core that behaves as cores do since 2025-12."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import mock_models
from tests.core.triton.newer_core import NewerCore
from tests.gateway_process import ROOT

START = """
import asyncio, os, sys, threading, time
from pathlib import Path

from openai_frontend.errors import GatewayError
from openai_frontend.triton import Options, Server
from tests.core.triton.generation_inputs import collect, generate

async def main():
    library, repository = map(Path, sys.argv[1:])
    server = Server(Options(library=library, model_repositories=[repository]))
    await server.start()
    await check(server, server._core)
    await server.stop()
"""
DEAD_ENGINE = """
async def check(server, core):
    print(await asyncio.to_thread(core.model_is_ready, "mock", 1))
    try:
        await collect(generate(server, 8))
    except GatewayError as error:
        print(error.message)
    print(await asyncio.to_thread(core.model_is_ready, "mock", 1))
"""
STOP_MEANWHILE = """
async def check(server, core):
    delay, mark = (Path(os.environ["NEWER_CORE"], name) for name in (".metadata", ".in-metadata"))
    delay.write_text("50000 1 0")
    asking = threading.Thread(target=core.metadata)
    asking.start()
    while not mark.exists():
        time.sleep(0.005)
    await asyncio.to_thread(core.stop)
    print("stopped", asking.is_alive())
    delay.unlink()
    asking.join()
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> NewerCore:
    return NewerCore(tmp_path_factory.mktemp("core"))


def run(core: NewerCore, repository: Path, check: str) -> list[str]:
    """The lines that the program printed; it must exit with 0."""
    command = [sys.executable, "-c", START + check + "asyncio.run(main())"]
    ended = subprocess.run(
        [*command, core.library, repository],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **core.environment, "PYTHONPATH": os.fspath(ROOT)},
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.slow
def test_dead_engine_of_the_in_process_backend(core, repository):
    """The core itself reports the model as not ready once its engine is dead."""
    mock_models.write(repository, "mock", die_after_tokens=2)

    before, reason, after = run(core, repository, DEAD_ENGINE)

    assert "died" in reason
    assert (before, after) == ("True", "False")


@pytest.mark.slow
def test_stop_during_a_query(core, repository):
    """The core is deleted when its last call has returned, and the stop does not wait."""
    assert run(core, repository, STOP_MEANWHILE) == ["stopped True"]
