"""Loads models, unloads them and lets them sleep at a client's request, if the operator allows it.
No HTTP.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from openai_frontend.config.model_options import is_name
from openai_frontend.errors import (
    Conflict,
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    ModelUnavailable,
    NotPermitted,
)
from openai_frontend.json_limits import check_json_depth
from openai_frontend.models.on_demand import OnDemandLoader
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.models.sleep import ModelSleep
from openai_frontend.runtime.triton_interface import UNREADABLE_CONFIG
from openai_frontend.triton import ModelIndexEntry, Server

_POLL_S = 0.1  # short against any load


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeProgress:
    """The state of a load or unload."""

    model: str
    state: str  # Triton's word: LOADING, UNLOADING, READY, ...
    phase: str | None  # what the load does at the moment, if its engine reports it
    running: int  # requests running in the model; an unload waits for them
    elapsed_s: float
    done: bool


class ModelChange:
    """A running load or unload. It continues if its client disconnects."""

    def __init__(
        self,
        model: str,
        registry: ModelRegistry,
        work: Coroutine[Any, Any, None],
        *,
        verb: str,
        config: str | None = None,
    ) -> None:
        """`verb` names the change in the error message: "loaded" or "unloaded". `config`: what the
        client sent in place of the repository's.
        """
        self.model = model
        self._config = config
        self._registry = registry
        self._began = time.monotonic()
        self._task = asyncio.get_running_loop().create_task(self._run(work, verb))
        self._task.add_done_callback(_seen)

    async def _run(self, work: Coroutine[Any, Any, None], verb: str) -> None:
        """Triton may give any error for a failed load; to clients the model is unavailable, unless
        their own config is unreadable.
        """
        try:
            await work
        except Conflict:
            raise
        except GatewayError as error:
            if self._config is not None and error.message.endswith(UNREADABLE_CONFIG):
                message = f"parameter 'config': {_problem(self._config)}"
                raise InvalidRequest(message, param="config") from error
            reason = " ".join(error.message.split()).removesuffix(";")
            message = f"The model '{self.model}' could not be {verb}: {reason}"
            raise ModelUnavailable(message) from error

    async def done(self) -> None:
        """Wait for the end. Raises ModelUnavailable with Triton's reason if it failed, or
        InvalidRequest.
        """
        await asyncio.shield(self._task)

    async def progress(self) -> AsyncGenerator[ChangeProgress, None]:
        """Yield each new state or phase, unchanged ones every second, and the end. Raises as
        `done`.
        """
        last: ChangeProgress | None = None
        while not self._task.done():
            now = self._now()
            if last is None or _differ(last, now):
                last = now
                yield now
            await asyncio.wait([self._task], timeout=_POLL_S)
        await self.done()
        yield self._now()

    def _now(self) -> ChangeProgress:
        return ChangeProgress(
            model=self.model,
            state=self._registry.state(self.model),
            phase=self._registry.load_phase(self.model),
            running=self._registry.use(self.model).running,
            elapsed_s=round(time.monotonic() - self._began, 1),
            done=self._task.done(),
        )


class ModelManagement:
    """Checks requests of all endpoints that load and unload models."""

    def __init__(
        self,
        server: Server,
        registry: ModelRegistry,
        sleep: ModelSleep,
        on_demand: OnDemandLoader,
        *,
        enabled: bool,
        overrides: bool = False,
    ) -> None:
        """`overrides`: clients may send a config and files with a load. `on_demand` makes room for
        models that wake.
        """
        self._server = server
        self._registry = registry
        self._enabled = enabled
        self._overrides = overrides
        self._sleep = sleep
        self._on_demand = on_demand

    async def index(self, *, ready_only: bool = False) -> list[ModelIndexEntry]:
        """All models of the repositories, one entry per version, as their folders are now. Always
        allowed: it changes nothing.
        """
        await self._server.refresh_index()
        entries = self._server.model_index()
        return [entry for entry in entries if entry.state == "READY" or not ready_only]

    async def load(
        self,
        name: str,
        *,
        config: str | None = None,
        model_files: Mapping[str, bytes] | None = None,
    ) -> ModelChange:
        """Start to load or reload a model.

        `config` (JSON) and `model_files` override the repository's, if the operator allows it.
        Raises NotPermitted, InvalidRequest (invalid name), ModelNotFound, Conflict.
        """
        await self._check(name, may_be_new=True)
        if (config is not None or model_files) and not self._overrides:
            raise NotPermitted(
                "This server does not accept a model's config or files from clients: the setting "
                "'allow_model_override' is off.",
                code="model_override_off",
            )
        work = self._registry.load(name, config=config, model_files=model_files)
        return ModelChange(name, self._registry, work, verb="loaded", config=config)

    async def unload(self, name: str, *, dependents: bool = True) -> ModelChange:
        """Start to unload a model.

        `dependents`: also unload an ensemble's composing models, unless another ensemble has them.
        Raises as `load`; unloading a model that is not loaded succeeds.
        """
        await self._check(name)
        work = self._registry.unload(name, dependents=dependents)
        return ModelChange(name, self._registry, work, verb="unloaded")

    async def sleep(self, name: str, level: int | None = None) -> ModelChange:
        """Start to put a model to sleep, at the level of its options unless one is given.

        Raises NotPermitted, ModelNotFound, and Conflict if the model cannot sleep or is in use.
        """
        model_name = self._able_to_sleep(name)
        level = level or self._registry.options(model_name).sleep_level or 1
        work = self._sleep.sleep(model_name, level)
        return ModelChange(model_name, self._registry, work, verb="put to sleep")

    async def wake(self, name: str) -> ModelChange:
        """Start to wake a model. Raises as `sleep`; waking a model that is awake succeeds."""
        model_name = self._able_to_sleep(name)
        work = self._on_demand.wake(model_name)
        return ModelChange(model_name, self._registry, work, verb="woken")

    def sleeping_name(self, name: str | None) -> str:
        """The named model; without a name the only one that can sleep.

        Raises InvalidRequest if several models can sleep or none.
        """
        if name is not None:
            return name
        able = self._registry.able_to_sleep()
        if len(able) != 1:
            which = "no model can sleep" if not able else "several models can sleep; name one"
            raise InvalidRequest(f"Missing 'model': {which}.", param="model")
        return able[0]

    def is_sleeping(self, name: str) -> bool:
        """Whether the model sleeps. Raises ModelNotFound."""
        return self._sleep.is_sleeping(self._registry.get(name).model_name)

    def _able_to_sleep(self, name: str) -> str:
        """Triton's name of the model."""
        self._check_enabled(name, "put models to sleep")
        model_name = self._registry.get(name).model_name
        self._sleep.check(model_name)
        return model_name

    def _check_enabled(self, name: str, what: str) -> None:
        if not self._enabled:
            raise NotPermitted(
                f"This server does not {what} at a client's request: the setting "
                "'enable_model_management' is off.",
                code="model_management_off",
            )
        if not is_name(name):
            raise InvalidRequest("Invalid 'model': not a valid model name.", param="model")

    async def _check(self, name: str, *, may_be_new: bool = False) -> None:
        self._check_enabled(name, "load or unload models")
        if self._server.options.model_control_mode != "explicit":
            raise Conflict(
                "This server does not load or unload models at a client's request: the setting "
                "'model_control_mode' is not 'explicit'.",
                code="model_control_mode",
            )
        if not self._is_in_a_repository(name):
            if may_be_new:
                await self._registry.update_files(name)
            await self._server.refresh()  # the folder may be newer than the snapshot
        if not self._is_in_a_repository(name):
            message = f"The model '{name}' is not in a model repository."
            raise ModelNotFound(message, param="model")
        self._registry.locks.check(name)

    def _is_in_a_repository(self, name: str) -> bool:
        return any(entry.name == name for entry in self._server.model_index())


def _differ(last: ChangeProgress, now: ChangeProgress) -> bool:
    changed = (last.state, last.phase) != (now.state, now.phase)
    return changed or now.elapsed_s - last.elapsed_s >= 1


def _problem(config: str) -> str:
    """Describe a config that Triton cannot read; only its log has more."""
    try:
        check_json_depth(config.encode())
        json.loads(config)
    except ValueError as error:
        return f"not valid JSON: {error}"
    return "not the configuration of this model; the server's log has the reason"


def _seen(task: asyncio.Task[None]) -> None:
    """Mark the exception as retrieved: the registry has logged it, and clients may have left."""
    if not task.cancelled():
        task.exception()
