"""The pool of tokenizer threads, with a bounded queue."""

import asyncio
import threading
from functools import partial

import pytest

from openai_frontend.errors import ServerOverloaded
from openai_frontend.prompting.tokenizer import TokenizerPool


def test_work_runs_on_another_thread() -> None:
    """The event loop's thread stays free."""

    async def thread_name() -> str:
        return await TokenizerPool(threads=1, queue=0).run(lambda: threading.current_thread().name)

    assert asyncio.run(thread_name()).startswith("prompt")


def test_work_beyond_the_queue_is_refused() -> None:
    """With one task running and one waiting, a third is refused at once."""

    async def third() -> None:
        pool, go = TokenizerPool(threads=1, queue=1), threading.Event()
        waiting = [asyncio.ensure_future(pool.run(partial(go.wait, 60))) for _ in range(2)]
        await asyncio.sleep(0)
        try:
            await pool.run(partial(go.wait, 60))
        finally:
            go.set()
            await asyncio.gather(*waiting)

    with pytest.raises(ServerOverloaded):
        asyncio.run(third())


def test_cancelled_work_leaves_the_queue() -> None:
    async def last() -> str:
        pool, go = TokenizerPool(threads=1, queue=1), threading.Event()
        running = asyncio.ensure_future(pool.run(partial(go.wait, 60)))
        waiting = asyncio.ensure_future(pool.run(lambda: "cancelled"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        taken = asyncio.ensure_future(pool.run(lambda: "taken"))
        await asyncio.sleep(0)
        go.set()
        await running
        return await taken

    assert asyncio.run(last()) == "taken"


def test_error_reaches_the_caller() -> None:
    """The caller gets the exception of the work."""

    with pytest.raises(ZeroDivisionError):
        asyncio.run(TokenizerPool(threads=1, queue=0).run(lambda: 1 // 0))
