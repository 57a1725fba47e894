"""Which models are being loaded or unloaded, so that two do not change one at a time."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from openai_frontend.errors import Conflict


class ModelLocks:
    """The changes under way, by model."""

    def __init__(self) -> None:
        self._done: dict[str, asyncio.Event] = {}
        self._unloading: set[str] = set()

    def check(self, name: str) -> None:
        """Raises Conflict where the model is changing."""
        if name in self._done:
            message = f"The model '{name}' is being loaded or unloaded."
            raise Conflict(message, param="model")

    @contextmanager
    def hold(self, name: str, *, unloading: bool = False) -> Iterator[None]:
        """One change, from its beginning to its end. Raises as `check` does."""
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
        """Whether the model is being unloaded: no request should begin there."""
        return name in self._unloading

    def __contains__(self, name: str) -> bool:
        return name in self._done

    async def wait_until_free(self, name: str) -> None:
        """Returns once nobody is changing the model."""
        while (done := self._done.get(name)) is not None:
            await done.wait()
