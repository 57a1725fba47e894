"""Logs an error that many requests share once per reason and minute."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from openai_frontend.errors import text_of

PERIOD_S = 60.0
_MOST_REASONS = 256  # remembered; the oldest is forgotten
_REASON_CHARACTERS = 500

Reason = Hashable


class Repeats:
    """Counts errors by reason. Thread-safe, because engines have threads of their own."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._logged: OrderedDict[Reason, tuple[float, int]] = OrderedDict()

    def suppressed(self, reason: Reason) -> int | None:
        """Errors that were not logged since the last one that was; None if this one is not to be
        logged either.
        """
        now_s = self._clock()
        with self._lock:
            logged_s, count = self._logged.get(reason, (None, 0))
            if logged_s is not None and now_s - logged_s < PERIOD_S:
                self._logged[reason] = logged_s, count + 1
                return None
            self._logged[reason] = now_s, 0
            self._logged.move_to_end(reason)
            if len(self._logged) > _MOST_REASONS:
                self._logged.popitem(last=False)
            return count

    def clear(self) -> None:
        """Forget all reasons."""
        with self._lock:
            self._logged.clear()


REPEATS = Repeats()  # of the process


def log_error(
    logger: logging.Logger,
    message: str,
    *args: Any,
    error: BaseException,
    traceback: bool = False,
    repeats: Repeats = REPEATS,
) -> None:
    """Log an error of a request, at the level DEBUG if it is a repetition.

    The error's type and text are the reason; `args` may differ, such as the id of the request.
    """
    text = text_of(error) or ""
    kind = type(error).__qualname__
    count = repeats.suppressed((logger.name, message, kind, text[:_REASON_CHARACTERS]))
    trace = error if traceback else None
    if count is None:
        logger.debug(message, *args, exc_info=trace, stacklevel=2)
    elif count:
        more = f"{message} (and %d more times since it was last logged)"
        logger.error(more, *args, count, exc_info=trace, stacklevel=2)
    else:
        logger.error(message, *args, exc_info=trace, stacklevel=2)
