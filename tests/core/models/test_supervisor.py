"""Engines that die and are restarted, in the test's own process."""

import asyncio
import json
import py_compile
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from openai_frontend import errors
from openai_frontend.admission.deferred_release import DeferredRelease
from openai_frontend.admission.queue import NO_LIMITS
from openai_frontend.config.model_options import EngineLimits
from openai_frontend.generation import GenerationRequest, SamplingParams
from openai_frontend.metrics.gateway import GatewayMetrics
from openai_frontend.models import supervisor
from openai_frontend.models.loader import ModelLoader
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.models.supervisor import EngineSupervisor
from openai_frontend.request_context.context import RequestContext, current
from openai_frontend.serving.admission.concurrency_limit import ConcurrencyLimiter
from openai_frontend.triton import ResponseStream, Server, _core, engine_control, inprocess
from tests import mock_models
from tests.core.engines import failing_engines
from tests.core.triton import puppet, python_models
from tests.core.triton.generation_inputs import collect, count, generate, generation, text
from tests.core.triton.waiting import until

ONE = EngineLimits(restarts=1)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No backoff: it has its own tests."""
    monkeypatch.setattr(supervisor, "MIN_DELAY_S", 0.0)


class World:
    def __init__(self, registry: ModelRegistry, limits: EngineLimits) -> None:
        self.registry = registry
        self.server = registry._server
        self.supervisor = EngineSupervisor(self.server, registry, GatewayMetrics(), limits)

    async def settle(self) -> None:
        """Look, until there is nothing more to mend."""
        self.supervisor.check(time.monotonic())
        await until(lambda: not self.supervisor._recoveries)

    async def ask(self) -> str:
        request = GenerationRequest(
            request_id="r", prompt="hi", sampling_params=SamplingParams(max_tokens=8), stream=True
        )
        text = ""
        async for deltas in self.registry.get("mock").generate(request):
            text += "".join(delta.text for delta in deltas)
        return text

    async def die(self) -> None:
        with pytest.raises(errors.ModelUnavailable, match="died"):
            await self.ask()


@asynccontextmanager
async def world(repository: Path, limits: EngineLimits, **options: Any) -> AsyncIterator[World]:
    async with mock_models.serving(repository, **options) as registry:
        yield World(registry, limits)


@pytest.mark.parametrize("mode", ["none", "explicit", "poll"])
async def test_restart(repository, nothing_left, mode):
    """In every model control mode a dead engine is replaced, and its model serves."""
    mock_models.write(repository, "mock", die_after_tokens=2)
    options = {"startup_models": ["*"]} if mode == "explicit" else {}
    async with world(repository, ONE, model_control_mode=mode, **options) as here:
        await here.die()
        mock_models.write(repository, "mock")  # what it is made of is read again
        await here.settle()

        assert await here.ask() == " token" * 8


async def test_requests_during_a_restart(repository, nothing_left, request):
    """They get Retry-After."""
    mock_models.write(repository, "mock", die_after_tokens=2)
    async with world(repository, ONE) as here:
        await here.die()
        mock_models.write(repository, "mock")
        loads = request.getfixturevalue("held_loads")  # the first load is over
        here.supervisor.check(time.monotonic())
        await until(lambda: here.server.health.reason("mock") is not None)

        with pytest.raises(errors.EngineRestarting, match="being restarted") as refused:
            await here.ask()
        assert refused.value.retry_after_s
        assert not here.server.model_is_ready("mock")
        loads.may_end.set()
        await here.settle()
        assert here.server.model_is_ready("mock")


async def test_failed_restarts(repository, nothing_left):
    """The reason is reported; once all restarts are used up, the model stays down."""
    mock_models.write(repository, "mock", die_after_tokens=2)
    async with world(repository, EngineLimits(restarts=2)) as here:
        await here.die()
        mock_models.write(repository, "mock", fail_at_load="no weights")
        await here.settle()

        with pytest.raises(errors.ModelFailed, match="no weights; giving up after 2 restarts"):
            await here.ask()
        await here.settle()
        assert "no weights" in here.registry.unready()["mock"]
        assert here.supervisor.given_up == {"mock"}


async def test_load_revives_a_model_that_is_down(repository, nothing_left):
    """A model that stays down serves again after a load."""
    mock_models.write(repository, "mock", die_after_tokens=2)
    options = {"model_control_mode": "explicit", "startup_models": ["*"]}
    async with world(repository, EngineLimits(restarts=0), **options) as here:
        await here.die()
        await here.settle()
        assert "died" in here.registry.unready()["mock"]

        mock_models.write(repository, "mock")
        await here.registry.load("mock")
        await here.settle()
        assert await here.ask() == " token" * 8


@pytest.mark.parametrize("restarts", [0, 1])
async def test_load_revives_a_model_that_hangs(repository, nothing_left, monkeypatch, restarts):
    """Before and after the last restart, a load replaces the engine, whose files are the same."""
    monkeypatch.setattr(supervisor, "RESPOND_WITHIN_S", 0.1)
    monkeypatch.setattr(engine_control, "PROBE_AGAIN_S", 0.1)
    mock_models.write(repository, "mock", hang_after_tokens=3)
    options = {"model_control_mode": "explicit", "startup_models": ["*"]}
    limits = EngineLimits(restarts=restarts, inter_token_s=0.3)
    async with world(repository, limits, **options) as here:
        watching = asyncio.create_task(here.supervisor.watch())
        for _ in range(restarts + 1):
            await until(lambda: here.server.health.reason("mock") is None)
            with pytest.raises(errors.GatewayError):
                await asyncio.gather(here.ask(), here.ask())
        await until(lambda: here.supervisor.given_up == ({"mock"} if restarts else set()))
        hanging = inprocess.handles("mock")
        async with asyncio.timeout(30):
            await here.registry.load("mock")

        assert inprocess.handles("mock").isdisjoint(hanging)
        await until(lambda: here.registry.is_ready())
        assert await count(generate(here.server, 2)) == 2
        watching.cancel()
        await asyncio.wait([watching])


@pytest.mark.parametrize("change", ["load", "unload"])
async def test_change_of_a_model_that_hangs(repository, nothing_left, monkeypatch, change):
    """It does not wait for requests without a timeout that have not begun."""
    monkeypatch.setattr(engine_control, "PROBE_AGAIN_S", 0.1)
    mock_models.write(repository, "part", hang_after_tokens=3, max_running=1)
    mock_models.write_ensemble(repository, "mock")
    options = {"model_control_mode": "explicit", "startup_models": ["*"]}
    async with world(repository, EngineLimits(inter_token_s=0.3), **options) as here:
        watching = asyncio.create_task(here.supervisor.watch())
        inputs = generation(max_tokens=8)
        streams = [here.server.infer("part", inputs) for _ in range(2)]
        streams.append(here.server.infer("mock", {"text_input": text("hi")}))
        first, *waiting = [asyncio.create_task(collect(each)) for each in streams]
        with pytest.raises(errors.EngineStalled):
            await first
        async with asyncio.timeout(30):
            await getattr(here.registry, change)("part")

        for each in waiting:
            with pytest.raises(errors.ModelUnavailable, match="has not responded"):
                await each
        watching.cancel()
        await asyncio.wait([watching])


def older_version(server: Server, tokens: int) -> ResponseStream:
    return server.infer("mock", generation(max_tokens=tokens), version=1)


async def test_dead_engine_of_an_older_version(repository, nothing_left):
    """It makes the server unready, and is restarted."""
    config = mock_models.CONFIG + "version_policy { all {} }\n"
    older = mock_models.write(repository, "mock", config=config, die_after_tokens=3)
    shutil.copytree(older, repository / "mock" / "2")
    (repository / "mock" / "2" / "model.json").write_text("{}")
    async with world(repository, ONE) as here:
        with pytest.raises(errors.ModelUnavailable, match="died"):
            await collect(older_version(here.server, 5))
        assert "died" in here.registry.unready()["mock"]
        assert not here.registry.is_ready()

        await here.settle()
        assert here.registry.is_ready()
        assert await count(older_version(here.server, 2)) == 2


async def test_per_model_limit(repository, nothing_left):
    """A model's `engine_max_restarts` overrides the setting."""
    mock_models.write(repository, "mock", die_after_tokens=2)
    (repository / "mock" / "openai_frontend.yaml").write_text(
        json.dumps({"engine_max_restarts": 0})
    )
    async with world(repository, ONE) as here:
        await here.die()
        mock_models.write(repository, "mock")
        await here.settle()

        with pytest.raises(errors.ModelFailed, match="died"):
            await here.ask()


async def test_unloaded_model(repository, nothing_left, caplog):
    """Its engine has not died: no restart, and no error in the log."""
    engine = failing_engines.UnloadsWhenTold
    engine.begun.clear()
    engine.may_end.clear()
    mock_models.write(repository, "mock", config=failing_engines.config(engine.__name__))
    options = {"model_control_mode": "explicit", "startup_models": ["*"]}
    async with world(repository, ONE, **options) as here:
        unloading = asyncio.create_task(here.registry.unload("mock"))
        assert await asyncio.to_thread(engine.begun.wait, 60)
        here.supervisor.check(time.monotonic())
        engine.may_end.set()
        await unloading

    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


class Deaf(puppet.Puppet):
    """An engine that ignores cancellation."""

    died: str | None = None

    def cancel(self, execution: _core.Execution) -> None:
        Deaf.cancelled += 1

    def failure(self) -> str | None:
        return Deaf.died

    def unsent(self, begun: bool) -> int:
        return 0


@pytest.fixture
async def deaf(repository, start_server, monkeypatch):
    """What asks a deaf engine, and the looks at it; it is not started again."""
    monkeypatch.setattr(puppet, "Puppet", Deaf)
    monkeypatch.setattr(inprocess, "RUNTIME", puppet.__name__)
    monkeypatch.setattr(Deaf, "died", None)
    (repository / "puppet" / "1").mkdir(parents=True)  # the index lists only models with a folder
    server = await start_server()
    async with puppet.model(server) as ask:
        registry = ModelRegistry(server, ModelLoader(server))
        await registry.refresh()
        yield ask, World(registry, EngineLimits(restarts=0))
        registry.close()


async def test_cancelled_requests_of_a_dead_engine(deaf):
    """Their release is not awaited: Triton may keep them forever."""
    ask, here = deaf
    here.server.unreleased.observers.append(here.registry.uses)
    current.set(RequestContext("req_1", deferred_release=(deferred := DeferredRelease())))
    (await ask()).stream.cancel()
    returned = asyncio.Event()
    deferred.when_released(returned.set)
    await here.settle()
    assert (here.registry.use("puppet").running, returned.is_set()) == (1, False)
    Deaf.died = "it died"
    await here.settle()

    assert (here.registry.use("puppet").running, returned.is_set()) == (0, True)


async def test_cancelled_requests_of_a_hanging_engine(deaf):
    """Those that Triton does not release within the timeout of a response stop counting: otherwise
    clients that give up would take every slot of the server.
    """
    ask, here = deaf
    limiter = ConcurrencyLimiter(4)
    here.server.unreleased.observers.append(limiter)
    hanging = World(here.registry, EngineLimits(restarts=0, first_token_s=0.3)).supervisor
    for _ in range(4):
        (await ask()).stream.cancel()
    hanging.check(time.monotonic())
    assert limiter.unreleased == 4
    with pytest.raises(errors.QueueFull, match="0 requests running and 4 cancelled but not yet"):
        await limiter.slots("other", NO_LIMITS).acquire(1)

    def checked() -> bool:
        hanging.check(time.monotonic())
        return limiter.unreleased == 0

    await until(checked)
    await until(lambda: here.server.health.reason("puppet") is not None)
    assert await limiter.slots("other", NO_LIMITS).acquire(1) == 1
    for task in hanging._recoveries.values():
        task.cancel()


def stubs() -> list[psutil.Process]:
    """Those of the Python backend that live."""
    return [each for each in psutil.Process().children() if _is_stub(each)]


def _is_stub(process: psutil.Process) -> bool:
    try:
        name, status = process.name(), process.status()
    except psutil.NoSuchProcess:
        return False
    return name.startswith("triton_python") and status != psutil.STATUS_ZOMBIE


async def lose_the_stub() -> None:
    [stub] = stubs()
    stub.kill()
    await until(lambda: not stubs())


async def replied(server: Server) -> bytes:
    [response] = await collect(server.infer("echo", {"IN": text("hello")}))
    reply: bytes = response.item("OUT")
    return reply


async def watch(here: World) -> None:
    """As `EngineSupervisor.watch` does: a stub is dead where two looks have found it so."""
    for _ in range(2):
        await here.supervisor._check_once()
    await until(lambda: not here.supervisor._recoveries)


async def test_checks_continue_after_an_error_of_the_core(repository, monkeypatch, caplog):
    """A model may be unloaded during a check."""

    async def gone() -> None:
        raise errors.ModelUnavailable("it is not loaded")

    mock_models.write(repository, "mock")
    async with world(repository, ONE) as here:
        monkeypatch.setattr(here.supervisor._control, "refresh", gone)
        await here.registry.refresh()
        await here.supervisor._check_once()
    assert "finding the engines' processes failed" in caplog.text
    assert "checking the engines failed" in caplog.text


@pytest.mark.slow
async def test_stub_restart(repository, nothing_left):
    """A dead stub is replaced, also in mode `none`, and its model serves."""
    python_models.write(repository, "echo")
    async with world(repository, ONE, model_control_mode="none") as here:
        await watch(here)
        await lose_the_stub()
        await watch(here)

        assert await replied(here.server) == b"hello"


@pytest.mark.slow
async def test_stub_that_dies_before_the_first_check(repository, nothing_left):
    """It is known from when its model is served."""
    python_models.write(repository, "echo")
    async with world(repository, ONE, model_control_mode="none") as here:
        await here.registry.refresh()
        await lose_the_stub()
        await watch(here)

        assert await replied(here.server) == b"hello"


@pytest.mark.slow
async def test_stub_in_poll_mode(repository, nothing_left, caplog):
    """The model stays down until its files change; log and readiness give the reason."""
    python_models.write(repository, "echo")
    # If the stub wrote its byte code, the core would see a change and load the model again.
    py_compile.compile(str(repository / "echo" / "1" / "model.py"), doraise=True)
    async with world(repository, ONE, model_control_mode="poll", repository_poll_s=0.05) as here:
        await watch(here)
        await lose_the_stub()
        await watch(here)
        await here.registry.refresh()
        for told in (caplog.text, here.registry.unready()["echo"]):
            assert "reloaded only if its files change" in told

        (repository / "echo" / "1" / "model.py").touch()
        async with asyncio.timeout(30):
            while "echo" in here.registry.unready():
                await asyncio.sleep(0.1)
                await here.registry.refresh()
                await watch(here)
        assert await replied(here.server) == b"hello"


def test_engine_whose_processes_end_is_no_other(monkeypatch):
    """A failed restart's own process may outlive the failure for a moment. A new one is a load."""
    pids = [frozenset({1}), frozenset({3}), frozenset(), frozenset({4})]
    kind = engine_control.EngineControl
    monkeypatch.setattr(kind, "identity", lambda control, name: pids.pop(0))
    control = kind.__new__(kind)
    engine: object = frozenset({1})

    assert control.has_no_other("model", engine)
    engine = control.with_processes(engine, "model")
    assert engine == frozenset({1, 3})
    assert control.has_no_other("model", engine)
    assert not control.has_no_other("model", engine)
