"""A mock engine in the test's process that hangs (`hang_after_tokens`) until the test releases it.

Its streams run for as long as a test needs them, however busy the machine is.
"""

import asyncio

from openai_frontend.engines.mock import MockEngine
from openai_frontend.triton import inprocess
from tests.core.triton.waiting import until


class HeldEngine:
    """The engine that serves the model now; a reload gives the model another one."""

    def __init__(self, model_name: str) -> None:
        engine = inprocess.handle(model_name)._engine
        assert isinstance(engine, MockEngine)
        self._engine = engine

    async def hangs(self, streams: int = 1) -> None:
        """Returns once it hangs, with so many streams at work."""
        await until(
            lambda: self._engine.stats().running == streams and self._engine._awake is not None
        )

    def release(self) -> None:
        """It goes on, and does not hang again."""
        assert self._engine._awake is not None
        self._engine._wake(asyncio.get_running_loop(), self._engine._awake)
