"""Work on tensors: at once where it is short, else in a thread, so that the event loop goes on."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_AT_ONCE_BYTES = 16 * 1024  # 0.5 ms, where each two bytes are an element of a JSON array


async def done(work: Callable[[], T], *, byte_size: int) -> T:
    """What `work` gives, on so many bytes."""
    return work() if byte_size <= _AT_ONCE_BYTES else await asyncio.to_thread(work)
