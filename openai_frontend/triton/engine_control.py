"""What can be done from outside to the engine behind a model: ask it, or start it again."""

import asyncio
import itertools
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from openai_frontend.errors import GatewayError, ModelUnavailable
from openai_frontend.triton import error_codes, inprocess
from openai_frontend.triton.server import Server
from openai_frontend.triton.stub_processes import StubProcesses, serves

logger = logging.getLogger(__name__)

PROBE_AGAIN_S = 1.0
_AGAIN = "openai_frontend_started_again"


class EngineControl:
    """For engines in this process, and for the stubs of Triton's Python backend."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stubs = StubProcesses()
        self._numbers = itertools.count(1)

    async def refresh(self) -> None:
        """Look for processes that have come: what others said of their instances is over. Those
        that went with their model are forgotten.
        """
        changing = self._server.is_changing()
        self._server.unhealthy_instances -= await asyncio.to_thread(
            self._stubs.refresh, changing=changing
        )
        if self._stubs.reaped():
            index = self._server.model_index()
            loaded = {entry.name for entry in index if entry.state == "READY"}
            groups = [self._config(name).get("instance_group", ()) for name in loaded]
            self._stubs.forget_reaped(
                except_for=lambda instance: any(serves(instance, g) for g in groups)
            )

    @property
    def lost_process(self) -> bool:
        """Whether one has gone since the last `find`, as of the last `failures`."""
        return self._stubs.lost

    def pending_tokens(self, name: str, begun: bool) -> int:
        """Tokens of an engine in this process that made no response, see `StallDetector`."""
        return sum(host.unsent(begun) for host in inprocess.hosts(name))

    def engine_failures(self, names: frozenset[str]) -> dict[str, str]:
        """Of these models, those whose engine has died: why."""
        died = {name: self._server.engine_failure(name) for name in names}
        found = {name: reason for name, reason in died.items() if reason is not None}
        dead, reaped = self._stubs.dead(), self._reaped()
        for instance in dead | reaped | self._server.unhealthy_instances:
            what = "has died" if instance in dead | reaped else "does not answer Triton"
            for name in names - found.keys():
                if instance in reaped and self._server.model_is_ready(name):
                    continue  # it needs no such process any more
                if serves(instance, self._config(name).get("instance_group", ())):
                    found[name] = f"the process of its instance {instance} {what}"
        return found

    def _reaped(self) -> set[str]:
        """None while models change: what is gone may have been put away."""
        return set() if self._server.is_changing() else self._stubs.reaped()

    def identity(self, name: str) -> object:
        """Equal as long as the model has the same engine, however often that was started again."""
        if hosts := inprocess.hosts(name):
            return hosts
        return frozenset(process.pid for process in self._stubs.of_model(self._config(name)))

    def can_probe(self, name: str) -> bool:
        """Whether the engine can be asked without a client's request."""
        return bool(inprocess.hosts(name))

    async def wait_for_probe(self, name: str) -> None:
        """Return once an engine in this process has answered, or is seen to be dead."""
        while (host := inprocess.host(name)) is not None and host.failure() is None:
            try:
                await host.probe()
            except Exception as error:  # noqa: BLE001  the edge to engines that users write
                logger.info(
                    "model %s: a probe failed: %s", name, error_codes.describe_exception(error)
                )
                await asyncio.sleep(PROBE_AGAIN_S)
            else:
                return

    def fail_requests(self, name: str, reason: str) -> None:
        """Fail what is in flight in an engine in this process, until it has been started again."""
        for host in inprocess.hosts(name):
            host.interrupt(reason)

    def restart_obstacle(self, name: str) -> str | None:
        """Why `restart` is not possible; None where it is."""
        if inprocess.hosts(name):
            return None
        config = self._config(name)
        groups = config.get("instance_group", ())
        said = any(
            serves(each, groups) for each in self._server.unhealthy_instances
        )  # only of stubs
        if not said and not self._stubs.of_model(config):
            return "its backend has no process of its own"
        if self._server.options.model_control_mode == "poll":
            return "in the model control mode 'poll' it is loaded again where its files change"
        return None

    async def restart(self, name: str) -> None:
        """Start the model's engine again; raises GatewayError with the reason where it does not.

        An engine in this process is made again in its place, whatever the model control mode: the
        core sees nothing of it. A model of the Python backend is loaded beside what is left of
        itself, for an unload would wait for requests that never end.
        """
        if hosts := inprocess.hosts(name):
            await self._server.run_shielded(_restarted(list(hosts)))
            await self._server.refresh(name)
            return
        config = self._config(name)
        self._stubs.kill(self._stubs.of_model(config))  # one that hangs would keep its memory
        # The core loads nothing anew whose config and files have not changed.
        config.setdefault("parameters", {})[_AGAIN] = {"string_value": str(next(self._numbers))}
        await self._server.load_again(name, json.dumps(config))
        groups = config.get("instance_group", ())
        self._server.unhealthy_instances -= {
            each for each in self._server.unhealthy_instances if serves(each, groups)
        }
        await self.refresh()

    def _config(self, name: str) -> dict[str, Any]:
        try:
            return self._server.model_config(name)
        except GatewayError:  # it has been unloaded meanwhile
            return {}


async def _restarted(hosts: list[inprocess.EngineHandle]) -> None:
    """On a thread of its own: a start may take minutes, and the loop's threads are few."""
    loop = asyncio.get_running_loop()
    thread = ThreadPoolExecutor(1, thread_name_prefix="engine-start")
    try:
        for host in hosts:
            await loop.run_in_executor(thread, host.restart)
    except RuntimeError as error:
        raise ModelUnavailable(str(error)) from error
    finally:
        thread.shutdown(wait=False)
