"""Background tasks, restarted if they fail and awake at the same times, and daemon threads."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

RESTART_DELAY_S = 1.0


async def supervise(name: str, task: Callable[[], Awaitable[None]]) -> None:
    """Run `task`, which never returns by itself; log a failure and restart it.

    A shortage of memory or threads must not end the tasks that watch keys, files and engines:
    their absence would go unnoticed.
    """
    while True:
        try:
            await task()
            return
        except Exception:
            logger.exception(
                "background task '%s' failed; restarting in %g s", name, RESTART_DELAY_S
            )
        await asyncio.sleep(RESTART_DELAY_S)


async def next_tick(every_s: float) -> None:
    """Sleep until the event loop's clock reaches a multiple of `every_s` that is at least half of
    `every_s` away.

    Periodic checks then share their wake-ups, on which an idle process spends most of its CPU time.
    """
    loop = asyncio.get_running_loop()
    now_s = loop.time()
    due_s = (now_s // every_s + 1) * every_s
    if due_s - now_s < every_s / 2:  # timers may be a millisecond early
        due_s += every_s
    await asyncio.sleep(due_s - now_s)


class ThreadUnavailable(OSError):
    """The process cannot start another thread."""


async def in_daemon_thread(name: str, blocking: Callable[[], Result]) -> Result:
    """Call a function that may block for minutes, as resolving a host name does, in a new thread.

    At exit the process does not wait for it, as it would for the event loop's own threads. If the
    caller is cancelled, the thread continues. Raises ThreadUnavailable if the function was not
    called because no thread could be started.
    """
    outcome = Future[Result]()
    outcome.set_running_or_notify_cancel()  # so that nothing but the thread ends it
    thread = threading.Thread(target=_call, args=(outcome, blocking), name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise ThreadUnavailable(str(error)) from None
    return await asyncio.wrap_future(outcome)


def _call(outcome: Future[Result], blocking: Callable[[], Result]) -> None:
    try:
        outcome.set_result(blocking())
    except Exception as error:  # noqa: BLE001  raised again in the task that awaits the future
        outcome.set_exception(error)
        del outcome  # the error's traceback refers to this frame, which would keep a connection
