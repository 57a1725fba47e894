"""Loads and unloads models where a client asks for it, and an operator lets it. No HTTP."""

import asyncio
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
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.triton import ModelIndexEntry, Server

_POLL_S = 0.1  # short against any load


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeProgress:
    """Where a change stands."""

    model: str
    state: str  # Triton's word: LOADING, UNLOADING, READY, ...
    running: int  # requests at work in the model, which an unload waits for
    elapsed_s: float
    done: bool


class ModelChange:
    """A load or an unload that is under way. It goes on though nobody waits for it."""

    def __init__(
        self, model: str, registry: ModelRegistry, work: Coroutine[Any, Any, None]
    ) -> None:
        self.model = model
        self._registry = registry
        self._began = time.monotonic()
        self._task = asyncio.get_running_loop().create_task(work)
        self._task.add_done_callback(_seen)

    async def done(self) -> None:
        """Returns once it is done. Raises ModelUnavailable with Triton's reason where it fails."""
        await asyncio.shield(self._task)

    async def progress(self) -> AsyncGenerator[ChangeProgress, None]:
        """Each new state, the same one again each second, and the end; raises as `done` does."""
        told: ChangeProgress | None = None
        while not self._task.done():
            now = self._now()
            if told is None or told.state != now.state or now.elapsed_s - told.elapsed_s >= 1:
                told = now
                yield now
            await asyncio.wait([self._task], timeout=_POLL_S)
        await self.done()
        yield self._now()

    def _now(self) -> ChangeProgress:
        return ChangeProgress(
            model=self.model,
            state=self._registry.state(self.model),
            running=self._registry.lease(self.model).running,
            elapsed_s=round(time.monotonic() - self._began, 1),
            done=self._task.done(),
        )


class ModelManagement:
    """One set of checks for every way to ask."""

    def __init__(
        self, server: Server, registry: ModelRegistry, *, enabled: bool, overrides: bool = False
    ) -> None:
        """`overrides`: whoever loads a model may send its config and files too."""
        self._server = server
        self._registry = registry
        self._enabled = enabled
        self._overrides = overrides

    def index(self, *, ready_only: bool = False) -> list[ModelIndexEntry]:
        """Every model of the repositories, one entry a version. It changes nothing, so it is not
        checked.
        """
        entries = self._server.model_index()
        return [entry for entry in entries if entry.state == "READY" or not ready_only]

    async def load(
        self,
        name: str,
        *,
        config: str | None = None,
        model_files: Mapping[str, bytes] | None = None,
    ) -> ModelChange:
        """Begins to load a model, or to load it again; with a config (JSON) and files that go
        before the repository's, where an operator lets clients send them.

        Raises NotPermitted, InvalidRequest (no name), ModelNotFound, Conflict.
        """
        await self._check(name)
        if (config is not None or model_files) and not self._overrides:
            raise NotPermitted(
                "Clients may not send a model's config or files to this server: the setting "
                "'allow_model_override' is off.",
                code="model_override_off",
            )
        work = self._registry.load(name, config=config, model_files=model_files)
        return ModelChange(name, self._registry, _told(name, "loaded", work))

    async def unload(self, name: str, *, dependents: bool = True) -> ModelChange:
        """Begins to unload a model, with `dependents` those of an ensemble that no other one has.

        Raises as `load`; a model that is not loaded is no error.
        """
        await self._check(name)
        work = self._registry.unload(name, dependents=dependents)
        return ModelChange(name, self._registry, _told(name, "unloaded", work))

    async def _check(self, name: str) -> None:
        if not self._enabled:
            raise NotPermitted(
                "Clients may not load or unload models of this server: the setting "
                "'enable_model_management' is off.",
                code="model_management_off",
            )
        if not is_name(name):
            raise InvalidRequest("Invalid 'model': this is no model's name.", param="model")
        if self._server.options.model_control_mode != "explicit":
            raise Conflict(
                "Models are loaded and unloaded by request only where the setting "
                "'model_control_mode' is 'explicit'.",
                code="model_control_mode",
            )
        if not self._is_in_a_repository(name):
            await self._server.refresh()  # its folder may be newer than the snapshot
        if not self._is_in_a_repository(name):
            message = f"The model '{name}' is in no repository."
            raise ModelNotFound(message, param="model")
        self._registry.locks.check(name)

    def _is_in_a_repository(self, name: str) -> bool:
        return any(entry.name == name for entry in self._server.model_index())


async def _told(name: str, done: str, work: Coroutine[Any, Any, None]) -> None:
    """Triton's word for a model that does not load may be any error; to the client it is one that
    cannot serve.
    """
    try:
        await work
    except Conflict:
        raise
    except GatewayError as error:
        reason = " ".join(error.message.split()).removesuffix(";")
        message = f"The model '{name}' could not be {done}: {reason}"
        raise ModelUnavailable(message) from error


def _seen(task: asyncio.Task[None]) -> None:
    """Whoever waits is told; where nobody does, the registry has logged the reason."""
    if not task.cancelled():
        task.exception()
