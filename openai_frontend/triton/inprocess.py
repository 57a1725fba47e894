"""The Python side of the in-process backend: hands Triton's requests to the hosts of the engines.

It knows no engine: the module that loads them is found by name, so that nothing here imports
`engines`.
"""

import asyncio
import importlib
import json
import logging
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from openai_frontend.logs.redaction import redact_exceptions
from openai_frontend.triton import _core, error_codes

logger = logging.getLogger(__name__)
redact_exceptions(logger)  # requests that fail in Triton's threads

BACKEND = "inprocess"
# A module that offers load(...) and interrupt_loads(); named, not imported.
RUNTIME = "openai_frontend.engines.loader"


# As Prometheus has them: name, labels beside those of the model, value
Sample = tuple[str, Mapping[str, str], float]


class EngineHandle(Protocol):
    """What this file needs of a loaded engine."""

    # What the gateway must know of the model: context length, tokenizer, ...
    facts: Mapping[str, Any]

    def start(self, execution: _core.Execution) -> None:
        """Begin a request. Called on the event loop."""

    def cancel(self, execution: _core.Execution) -> None:
        """End a request that its caller has given up. Called on the event loop."""

    def unload(self) -> None:
        """Release everything. Called on a thread of Triton's."""

    def set_adapters(self, adapters: Mapping[str, Any]) -> None:
        """Know the adapters that requests may name; called where the model has had any."""

    def interrupt(self, reason: str) -> None:
        """Fail what is in flight, and what comes until the restart. Called on the event loop."""

    def restart(self) -> None:
        """Load the engine again. Blocks."""

    async def probe(self) -> None:
        """Returns once the engine has answered something."""

    def unsent(self, begun: bool) -> int:
        """Tokens that made no response; for requests that have begun, those of streams alone."""

    def failure(self) -> str | None:
        """Why the engine can serve no more, or None while it can. Called on any thread."""

    def stats(self) -> Any:
        """How many requests run and wait."""

    def samples(self) -> Iterable[Sample]:
        """What `/metrics` shows of the engine beside that: name, labels, value."""


# Model and version -> its hosts, the current one last: a reload has two for a while, and one that
# fails leaves the first. Threads of Triton's change it, so it is replaced whole, under the lock.
_hosts: dict[tuple[str, int], tuple[EngineHandle, ...]] = {}
_adapters: dict[str, Mapping[str, Any]] = {}  # model -> its adapters, for hosts yet to come too
_hosts_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def host(model_name: str, version: int = -1) -> EngineHandle | None:
    """Return the host of a loaded in-process model; version -1 is the highest one loaded."""
    hosts = _hosts
    versions = [loaded for name, loaded in hosts if name == model_name]
    wanted = max(versions, default=-1) if version == -1 else version
    current = hosts.get((model_name, wanted))
    return current[-1] if current else None


def set_adapters(model_name: str, adapters: Mapping[str, Any]) -> None:
    """Tell every host of a model, and those that its reloads bring, which adapters there are."""
    with _hosts_lock:
        if not adapters and model_name not in _adapters:
            return
        _adapters[model_name] = adapters
        hosts = [each for (name, _), kept in _hosts.items() if name == model_name for each in kept]
        for each in hosts:
            each.set_adapters(adapters)


def hosts(model_name: str) -> frozenset[EngineHandle]:
    """Return every host of an in-process model, those that a reload replaces included."""
    loaded = _hosts
    return frozenset(
        each
        for (name, _), of_version in loaded.items()
        if name == model_name
        for each in of_version
    )


def _register(key: tuple[str, int], engine_host: EngineHandle) -> None:
    global _hosts
    with _hosts_lock:
        if (adapters := _adapters.get(key[0])) is not None:
            engine_host.set_adapters(adapters)
        _hosts = {**_hosts, key: (*_hosts.get(key, ()), engine_host)}


def _unregister(key: tuple[str, int], engine_host: EngineHandle) -> None:
    global _hosts
    with _hosts_lock:
        left = tuple(each for each in _hosts.get(key, ()) if each is not engine_host)
        others = {name: hosts for name, hosts in _hosts.items() if name != key}
        _hosts = {**others, key: left} if left else others


def attach(loop: asyncio.AbstractEventLoop) -> None:
    """Take executions on this loop from now on."""
    global _loop
    _loop = loop
    _adapters.clear()
    _core.set_engine_loader(_load)
    _core.open_executions()
    loop.add_reader(_core.execution_fd(), _on_executions)


def detach(loop: asyncio.AbstractEventLoop, reason: str) -> None:
    """Fail what is in flight with `reason`, and take no more."""
    for engine_host, execution in close(reason):
        _guarded(engine_host.cancel, execution)
    loop.remove_reader(_core.execution_fd())


def close(reason: str) -> list[tuple[EngineHandle, _core.Execution]]:
    """Fail what is in flight with `reason`, and later requests at once; return what was failed.

    Their engines are not told: this is legal where the loop has closed.
    """
    failed: list[tuple[EngineHandle, _core.Execution]] = _core.close_executions(reason)
    for _, execution in failed:
        execution.fail(error_codes.UNAVAILABLE, reason)
    return failed


def interrupt_loads() -> None:
    """Make the loads that are under way fail soon. May be called many times."""
    importlib.import_module(RUNTIME).interrupt_loads()


def _on_executions() -> None:
    for engine_host, execution in _core.drain_executions():
        _guarded(engine_host.start, execution)
    for engine_host, execution in _core.take_cancelled_executions():
        _guarded(engine_host.cancel, execution)


def _guarded(call: Any, execution: _core.Execution) -> None:
    """The edge between Triton and engines that users write: one bad request must not stop the
    others.
    """
    try:
        call(execution)
    except Exception as error:
        logger.exception("request %s failed in its engine", execution.request_id)
        execution.fail(error_codes.INTERNAL, error_codes.describe_exception(error))


class _RegisteredHost:
    """Takes the host out of the register when Triton unloads the model."""

    def __init__(self, key: tuple[str, int], engine_host: EngineHandle) -> None:
        self._key = key
        self._host = engine_host
        self.start = engine_host.start
        self.cancel = engine_host.cancel
        self.failure = engine_host.failure

    def unload(self) -> None:
        try:
            self._host.unload()
        finally:
            _unregister(self._key, self._host)


def _load(name: str, version: int, folder: str, config: str) -> tuple[_RegisteredHost, str]:
    """Load an engine on Triton's load thread; give its host and the completed model config as
    JSON.
    """
    runtime = importlib.import_module(RUNTIME)
    engine_host, completed = runtime.load(name, version, Path(folder), json.loads(config), _loop)
    _register((name, version), engine_host)
    return _RegisteredHost((name, version), engine_host), json.dumps(completed)
