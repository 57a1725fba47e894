"""The real core with the mock engine, and a check that no test leaks its objects."""

import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from openai_frontend.logs.repeats import REPEATS
from openai_frontend.request_context.context import RequestContext, current
from openai_frontend.triton import Options, Server, _core, library
from tests import mock_models

pytest_plugins = [
    "tests.gateway_process",  # before those that import it
    "tests.distribution",
    "tests.flaky",
    "tests.process_state",
    "tests.blocking_calls",
    "tests.loop_clock",
    "tests.api.conformance.plugin",
    "tests.api.conformance.wire",
    "tests.api.conformance.gateway",
    "tests.shared_gateway",
]

# As `serve` sets them: the fork handlers of gRPC's library abort if the Python backend forks, and
# its log would be among pytest's output
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
os.environ["GRPC_VERBOSITY"] = "NONE"

# With the gateway's own variable, tests in this process use the same core as their gateways.
if _library := os.environ.get("OPENAI_FRONTEND_TRITON_LIBRARY"):
    vars(library)["IMAGE_LIBRARY"] = Path(_library)

# A busy machine takes longer over an example now and then; tests of speed count CPU time instead.
# A change is judged by the same examples on every machine; `--hypothesis-profile=explore` draws new
# ones, four times as many (`scaled` in tests/examples.py, where a test has its own number).
hypothesis.settings.register_profile("suite", deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=400)
hypothesis.settings.load_profile("suite")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without the garbage collector, which takes a fifth of the time and finds nothing.

    Later collections ignore what the collection of the tests leaves: half a million objects.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


StartServer = Callable[..., Awaitable[Server]]


@pytest.fixture(autouse=True)
def repeats_of_this_test_alone() -> None:
    """An error that an earlier test has logged is logged again."""
    REPEATS.clear()


@pytest.fixture
def request_context() -> Iterator[RequestContext]:
    """The context of a request without a key, in which the test runs."""
    context = RequestContext("req_1")
    token = current.set(context)
    yield context
    current.reset(token)
    context.end()


@pytest.fixture
def nothing_left(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fails if a request, response, buffer or execution outlives the test."""
    if any(_core.live_counts().values()):
        gc.collect()  # an earlier test's garbage
    yield
    caplog.get_records("call").clear()  # the traceback of a logged exception refers to its objects
    gc.collect()
    assert set(_core.live_counts().values()) == {0}, _core.live_counts()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """An empty model repository; `mock_models.write` fills it."""
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
async def start_server(repository: Path, nothing_left: None) -> AsyncIterator[StartServer]:
    """Starts cores on `repository`, in explicit mode; they stop after the test."""
    started = []

    async def start(**options: Any) -> Server:
        options = {"model_control_mode": "explicit", **options}
        server = Server(Options(model_repositories=[repository], **options))
        started.append(server)
        await server.start()
        return server

    yield start
    for server in started:
        await server.stop()


@pytest.fixture
async def server(repository: Path, start_server: StartServer) -> Server:
    """A core in explicit mode with one model, `mock`, at full speed."""
    mock_models.write(repository, "mock")
    return await start_server()
