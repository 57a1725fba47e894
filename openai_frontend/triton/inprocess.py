"""Python side of the in-process backend: passes Triton's requests to the engines.

Imports no engine: the module that loads them is found by name.
"""

import asyncio
import importlib
import json
import logging
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from openai_frontend.errors import caught, describe_exception
from openai_frontend.logs.redaction import redact_exceptions
from openai_frontend.logs.repeats import log_error
from openai_frontend.model_facts import ModelFacts
from openai_frontend.triton import _core, error_codes

logger = logging.getLogger(__name__)
redact_exceptions(logger)  # requests that fail in Triton's threads

BACKEND = "inprocess"
# Provides load(...) and interrupt_loads(). Not imported here, see above.
RUNTIME = "openai_frontend.engines.loader"


# A Prometheus sample: name, labels in addition to the model's, value
Sample = tuple[str, Mapping[str, str], float]


class EngineHandle(Protocol):
    """A loaded engine, as this module needs it."""

    # Facts that the gateway needs: context length, tokenizer, ...
    facts: ModelFacts

    def start(self, execution: _core.Execution) -> None:
        """Start a request. Called on the event loop."""

    def cancel(self, execution: _core.Execution) -> None:
        """Cancel a request. Called on the event loop."""

    def unload(self) -> None:
        """Release everything. Called on a Triton thread."""

    def set_adapters(self, adapters: Mapping[str, Any]) -> None:
        """Set the adapters that requests may name; called only if the model has had any."""

    def interrupt(self, reason: str) -> None:
        """Fail all requests, also new ones until the restart. Called on the event loop."""

    def restart(self) -> None:
        """Load the engine again. Blocks."""

    @property
    def is_sleeping(self) -> bool:
        """Whether the engine sleeps; a request wakes it."""

    async def sleep(self, level: int) -> int:
        """Let the engine sleep; return the freed bytes. Called on the event loop."""

    async def wake(self) -> None:
        """Wake the engine. Called on the event loop."""

    async def probe(self) -> str | None:
        """Return once the engine has responded: None, or why it failed."""

    def unsent(self, begun: bool) -> int:
        """Tokens without a response; if `begun`, only those of streams."""

    def failure(self) -> str | None:
        """Why the engine can no longer serve, or None. Called on any thread."""

    def stats(self) -> Any:
        """The numbers of running and waiting requests."""

    def samples(self) -> Iterable[Sample]:
        """Further samples for `/metrics`."""


# The current engine is last: a reload has two for a while, and a failed one leaves the first.
# Triton's threads change the mapping, so it is replaced as a whole, under the lock.
_handles: dict[tuple[str, int], tuple[EngineHandle, ...]] = {}
# The current engine by name and version, or -1 for the highest one
_current: dict[tuple[str, int], EngineHandle] = {}
# All engines by name alone, with the current one of each version: checks ask for every model
_by_name: dict[str, tuple[frozenset[EngineHandle], Sequence[EngineHandle]]] = {}
_NONE: tuple[frozenset[EngineHandle], Sequence[EngineHandle]] = (frozenset(), ())
_adapters: dict[str, Mapping[str, Any]] = {}  # by model; also for later reloads
_failed_reloads: set[str] = set()  # models
_handles_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_attached = False


def handle(model_name: str, version: int = -1) -> EngineHandle | None:
    """Return the engine of a loaded in-process model; version -1 is the highest loaded one."""
    return _current.get((model_name, version))


def current_handles(model_name: str) -> Sequence[EngineHandle]:
    """Return the engine of each loaded version of an in-process model."""
    return _by_name.get(model_name, _NONE)[1]


def set_adapters(model_name: str, adapters: Mapping[str, Any]) -> None:
    """Set a model's adapters in its engines, including those of later reloads."""
    with _handles_lock:
        if not adapters and model_name not in _adapters:
            return
        _adapters[model_name] = adapters
        for (name, _), handles in _handles.items():
            if name == model_name:
                for each in handles:
                    each.set_adapters(adapters)


def handles(model_name: str) -> frozenset[EngineHandle]:
    """Return all engines of an in-process model, including one that a reload is replacing."""
    return _by_name.get(model_name, _NONE)[0]


def failures() -> dict[str, str]:
    """Return the models with a loaded version whose engine can serve no more, and why."""
    found: dict[str, str] = {}
    for name, (_, current) in _by_name.items():
        for each in current:
            if (reason := each.failure()) is not None:
                found.setdefault(name, reason)
    return found


def any_handles() -> bool:
    """Whether an in-process model is loaded."""
    return bool(_handles)


def has_failed_reload() -> bool:
    """Whether a load failed of a model that serves, as a poll of the repository may begin one."""
    return bool(_failed_reloads)


def _register(key: tuple[str, int], engine_handle: EngineHandle) -> None:
    with _handles_lock:
        if (adapters := _adapters.get(key[0])) is not None:
            engine_handle.set_adapters(adapters)
        _replace({**_handles, key: (*_handles.get(key, ()), engine_handle)})


def _unregister(key: tuple[str, int], engine_handle: EngineHandle) -> None:
    with _handles_lock:
        left = tuple(each for each in _handles.get(key, ()) if each is not engine_handle)
        others = {name: handles for name, handles in _handles.items() if name != key}
        _replace({**others, key: left} if left else others)


def _replace(handles: dict[tuple[str, int], tuple[EngineHandle, ...]]) -> None:
    global _handles, _current, _by_name
    current = {key: of_version[-1] for key, of_version in handles.items()}
    latest = {(name, -1): current[name, version] for name, version in sorted(current)}
    versions = defaultdict(list)
    for (name, _), of_version in handles.items():
        versions[name].append(of_version)
    _by_name = {
        name: (frozenset().union(*of_name), [of_version[-1] for of_version in of_name])
        for name, of_name in versions.items()
    }
    _handles, _current = handles, latest | current


def attach(loop: asyncio.AbstractEventLoop) -> None:
    """Accept executions on this loop.

    Raises RuntimeError while another core of this process is attached: its requests would fail once
    either stops.
    """
    global _attached, _loop
    if _attached:
        raise RuntimeError("another Triton core of this process has not stopped yet")
    _attached, _loop = True, loop
    _adapters.clear()
    _failed_reloads.clear()
    _core.set_engine_loader(_load)
    _core.open_executions()
    loop.add_reader(_core.execution_fd(), _on_executions)


def detach(loop: asyncio.AbstractEventLoop, reason: str) -> None:
    """Fail requests in flight with `reason` and accept no more."""
    for engine_handle, execution in close(reason):
        _cancel(engine_handle, execution)
    loop.remove_reader(_core.execution_fd())


def close(reason: str) -> list[tuple[EngineHandle, _core.Execution]]:
    """Fail requests in flight and later ones with `reason`; return those that were in flight.

    Does not call the engines, so it is safe after the loop has closed.
    """
    global _attached
    _attached = False
    failed: list[tuple[EngineHandle, _core.Execution]] = _core.close_executions(reason)
    for _, execution in failed:
        execution.fail(error_codes.UNAVAILABLE, reason)
    return failed


def interrupt_loads() -> None:
    """Make running loads fail soon. May be called repeatedly."""
    importlib.import_module(RUNTIME).interrupt_loads()


def _on_executions() -> None:
    for engine_handle, execution in _core.drain_executions():
        with caught(partial(_fail, execution)):  # a user's engine: others continue
            engine_handle.start(execution)
    for engine_handle, execution in _core.take_cancelled_executions():
        _cancel(engine_handle, execution)


def _cancel(engine_handle: EngineHandle, execution: _core.Execution) -> None:
    with caught(partial(_fail, execution)):
        engine_handle.cancel(execution)


def _fail(execution: _core.Execution, error: Exception) -> None:
    with caught(_log_unreported):
        message = "engine failed on request %s"
        log_error(logger, message, execution.request_id, error=error, traceback=True)
        execution.fail(error_codes.INTERNAL, describe_exception(error))


def _log_unreported(error: Exception) -> None:
    """The request ends with the last reference to its execution."""
    logger.error("cannot report an engine's failure", exc_info=error)


class _RegisteredHandle:
    """Unregisters the engine when Triton unloads the model."""

    def __init__(self, key: tuple[str, int], engine_handle: EngineHandle) -> None:
        self._key = key
        self._handle = engine_handle
        self.start = engine_handle.start
        self.cancel = engine_handle.cancel
        self.failure = engine_handle.failure

    def unload(self) -> None:
        try:
            self._handle.unload()
        finally:
            _unregister(self._key, self._handle)


def _load(name: str, version: int, folder: str, config: str) -> tuple[_RegisteredHandle, str]:
    """Load an engine on Triton's load thread; return it and the completed config as JSON."""
    runtime = importlib.import_module(RUNTIME)
    try:
        engine_handle, completed = runtime.load(
            name, version, Path(folder), json.loads(config), _loop
        )
    except Exception:
        if handles(name):
            _failed_reloads.add(name)
        raise
    _register((name, version), engine_handle)
    return _RegisteredHandle((name, version), engine_handle), json.dumps(completed)
