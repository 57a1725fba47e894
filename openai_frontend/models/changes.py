"""Locks that allow one load or unload per model at a time."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from openai_frontend.errors import Conflict


class ModelLocks:
    """A lock per model. Taking a lock that is held fails instead of waiting."""

    def __init__(self) -> None:
        self._done: dict[str, asyncio.Event] = {}
        self._unloading: set[str] = set()

    def check(self, name: str) -> None:
        """Raise Conflict if the model is being loaded or unloaded."""
        if name in self._done:
            message = f"The model '{name}' is being loaded or unloaded."
            raise Conflict(message, param="model")

    @contextmanager
    def hold(self, name: str, *, unloading: bool = False) -> Iterator[None]:
        """Hold the model's lock during a change. Raises as `check`."""
        self.check(name)
        done = self._done[name] = asyncio.Event()
        if unloading:
            self._unloading.add(name)
        try:
            yield
        finally:
            del self._done[name]
            self._unloading.discard(name)
            done.set()

    def is_unloading(self, name: str) -> bool:
        """Whether the model is being unloaded: no new request may start."""
        return name in self._unloading

    def __contains__(self, name: str) -> bool:
        return name in self._done

    async def wait_until_free(self, name: str) -> None:
        """Wait until the model's lock is free."""
        while (done := self._done.get(name)) is not None:
            await done.wait()
