"""One event loop for all inputs: creating one takes longer than most checks."""

import asyncio
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


@cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine. Fail if an error outside of it reached the loop's exception handler."""
    failures: list[dict[str, Any]] = []
    loop = _runner().get_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    result = _runner().run(work)
    assert not failures, failures
    return result


def close() -> None:
    """Close the loop and its descriptors."""
    _runner().close()
    _runner.cache_clear()
