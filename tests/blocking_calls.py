"""A pytest plugin that fails calls to the core that may block an event loop's thread.

It applies to every test that runs a server in its own process.
"""

import asyncio
import functools
from collections.abc import Iterator
from typing import Any

import pytest

from openai_frontend.triton import _core

# Each only looks up a model, under the locks that `infer` takes too, or takes no lock of the core.
MAY_RUN_ON_THE_LOOP = {
    "infer", "drain", "response_fd", "is_live", "metadata", "model_config", "model_metadata",
    "model_statistics", "model_is_decoupled", "unhealthy_stubs",
}  # fmt: skip


class BlockingCallOnLoop(BaseException):
    """A BaseException, so that no `except Exception` or `except TritonError` hides it."""


@pytest.fixture(autouse=True, scope="session")
def no_blocking_core_calls() -> Iterator[None]:
    """Guards every other method of the extension's server."""
    names = {name for name in vars(_core.Server) if not name.startswith("_")}
    with pytest.MonkeyPatch.context() as patch:
        for name in names - MAY_RUN_ON_THE_LOOP:
            patch.setattr(_core.Server, name, _guarded(name, getattr(_core.Server, name)))
        yield


def _guarded(name: str, method: Any) -> Any:
    @functools.wraps(method)
    def guarded(self: _core.Server, *arguments: Any) -> Any:
        if asyncio._get_running_loop() is not None:
            raise BlockingCallOnLoop(f"Server.{name} was called on an event loop's thread")
        return method(self, *arguments)

    return guarded
