"""Controls the engine of a model: detects failures, probes it, restarts it."""

import asyncio
import itertools
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from openai_frontend.errors import GatewayError, ModelUnavailable
from openai_frontend.triton import inprocess
from openai_frontend.triton.ensembles import with_ensembles
from openai_frontend.triton.process_exits import ProcessExits
from openai_frontend.triton.server import Server
from openai_frontend.triton.stub_processes import serves

logger = logging.getLogger(__name__)

PROBE_AGAIN_S = 1.0
_RESTART_PARAMETER = "openai_frontend_restart"


class EngineControl:
    """Controls engines in this process and stubs of Triton's Python backend."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stubs = server.stubs
        self._refreshing = asyncio.Lock()  # the older of two lists of processes must not win
        self._numbers = itertools.count(1)
        self._exits: ProcessExits | None = None  # None: nothing watches the processes

    def watch_processes(self, on_exit: Callable[[], None]) -> None:
        """Call `on_exit` whenever a child process ends that the last `refresh` has found."""
        self._exits = ProcessExits(on_exit)
        self._exits.watch(self._stubs.children)

    def end_watch(self) -> None:
        """Undo `watch_processes`."""
        if self._exits is not None:
            self._exits.close()
            self._exits = None

    async def refresh(self) -> None:
        """Find new stub processes, and tell the core's requests about them.

        Forgets processes that ended because their model was unloaded.
        """
        async with self._refreshing:
            changing = self._server.is_changing()
            await asyncio.to_thread(self._stubs.refresh, changing=changing)
            if self._exits is not None:
                self._exits.watch(self._stubs.children)
            if not self._server.is_live():  # it stops
                return
            index = self._server.model_index()
            loaded = {entry.name for entry in index if entry.state == "READY"}
            await asyncio.to_thread(self._assign, loaded)

    def _assign(self, names: set[str]) -> None:
        """Assign the stubs to these models."""
        any_stub = self._stubs.newest() or self._stubs.reaped()
        configs = {name: self._config(name) for name in names} if any_stub else {}
        groups = {name: config.get("instance_group", ()) for name, config in configs.items()}
        self._stubs.forget_reaped(
            except_for=lambda instance: any(serves(instance, each) for each in groups.values())
        )
        running = {}
        for instance, process in self._stubs.newest().items():
            owners = {name for name, each in groups.items() if serves(instance, each)}
            running[instance] = process.pid, sorted(with_ensembles(configs, owners))
        self._server.set_stubs(running)

    @property
    def lost_process(self) -> bool:
        """Whether a process ended between the last `refresh` and the last `engine_failures`."""
        return self._stubs.lost

    @property
    def suspects_death(self) -> bool:
        """Whether another call of `engine_failures` may soon find a process that has died."""
        return self._stubs.suspects

    def pending_tokens(self, name: str, begun: bool) -> int:
        """Tokens without a response from an engine in this process, see `StallDetector`."""
        return sum(handle.unsent(begun) for handle in inprocess.handles(name))

    def engine_failures(self, names: frozenset[str]) -> dict[str, str]:
        """Models whose engine has died, with the reason; only these models are checked."""
        found = {name: why for name, why in inprocess.failures().items() if name in names}
        dead, reaped = self._stubs.dead(), self._reaped()
        unhealthy = self._server.unhealthy_stubs()
        for instance in dead | reaped | unhealthy.keys():
            what = "did not respond to Triton in time" if unhealthy.get(instance) else "has died"
            for name in names - found.keys():
                if instance in reaped and self._server.model_is_ready(name):
                    continue  # it no longer needs this process
                if serves(instance, self._config(name).get("instance_group", ())):
                    found[name] = f"the process of its instance {instance} {what}"
        return found

    def _reaped(self) -> set[str]:
        """Empty while models change: the process may have been stopped on purpose."""
        return set() if self._server.is_changing() else self._stubs.reaped()

    def identity(self, name: str) -> object:
        """A value that stays equal until the model gets another engine; restarts keep it."""
        if handles := inprocess.handles(name):
            return handles
        return frozenset(process.pid for process in self._stubs.of_model(self._config(name)))

    def has_no_other(self, name: str, engine: object) -> bool:
        """Whether the model has only this engine (`identity`); processes of it may have ended."""
        now = self.identity(name)
        if isinstance(now, frozenset) and isinstance(engine, frozenset):
            return now <= engine
        return now == engine

    def with_processes(self, engine: object, name: str) -> object:
        """The engine (`identity`) with the processes that the model has now."""
        now = self.identity(name)
        if isinstance(now, frozenset) and isinstance(engine, frozenset):
            return engine | now
        return engine

    def can_probe(self, name: str) -> bool:
        """Whether the engine can be probed without a client's request."""
        return bool(inprocess.handles(name))

    async def wait_for_probe(self, name: str) -> None:
        """Return once each version's engine in this process has answered a probe, or has died."""
        async with asyncio.TaskGroup() as probes:
            for handle in inprocess.current_handles(name):
                probes.create_task(_wait_for_probe(name, handle))

    def fail_requests(self, name: str, reason: str) -> None:
        """Fail the requests of an engine in this process, also new ones until its restart."""
        for handle in inprocess.handles(name):
            handle.interrupt(reason)

    def restart_obstacle(self, name: str) -> str | None:
        """Why `restart` is impossible; None if it is possible."""
        if inprocess.handles(name):
            return None
        config = self._config(name)
        groups = config.get("instance_group", ())
        said = any(serves(each, groups) for each in self._server.unhealthy_stubs())  # only stubs
        if not said and not self._stubs.of_model(config):
            return "its backend has no process of its own"
        if self._server.options.model_control_mode == "poll":
            return "in model control mode 'poll' it is reloaded only if its files change"
        if not self._stubs.has_room():
            return "Triton keeps too many instances whose process has died; restart the gateway"
        return None

    async def restart(self, name: str) -> None:
        """Restart the model's engine. Raises GatewayError with the reason if that fails.

        An engine in this process is replaced in place, in any model control mode and unnoticed by
        the core. A model of the Python backend is loaded next to the remains of its old instances:
        an unload would wait for requests that never end.
        """
        if handles := inprocess.handles(name):
            await self._server.run_shielded(_restarted(list(handles)))
            await self._server.refresh(name)
            return
        config = self._config(name)
        before = self._stubs.serving(config)
        self._stubs.kill(before)  # a hanging one would keep its memory
        # The core does not reload a model whose config and files are unchanged.
        config.setdefault("parameters", {})[_RESTART_PARAMETER] = {
            "string_value": str(next(self._numbers))
        }
        await self._server.load_again(name, json.dumps(config))
        self._stubs.abandon(before)
        await self.refresh()

    def _config(self, name: str) -> dict[str, Any]:
        try:
            return self._server.model_config(name)
        except GatewayError:  # unloaded meanwhile
            return {}


async def _wait_for_probe(name: str, handle: inprocess.EngineHandle) -> None:
    """Also returns if another load has replaced the engine, whose probe may then never end."""
    probe = asyncio.ensure_future(handle.probe())
    try:
        while handle in inprocess.current_handles(name) and handle.failure() is None:
            if not (await asyncio.wait([probe], timeout=PROBE_AGAIN_S))[0]:
                continue
            if (failure := probe.result()) is None:
                return
            logger.info("model %s: a probe failed: %s", name, failure)
            await asyncio.sleep(PROBE_AGAIN_S)
            probe = asyncio.ensure_future(handle.probe())
    finally:
        probe.cancel()


async def _restarted(handles: list[inprocess.EngineHandle]) -> None:
    """Restart on a separate thread: it may take minutes, and the loop's threads are few."""
    loop = asyncio.get_running_loop()
    thread = ThreadPoolExecutor(1, thread_name_prefix="engine-start")
    try:
        for handle in handles:
            await loop.run_in_executor(thread, handle.restart)
    except RuntimeError as error:
        raise ModelUnavailable(str(error)) from error
    finally:
        thread.shutdown(wait=False)
