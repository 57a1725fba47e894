"""The process' log: who writes into it, at which level, and what becomes of stray exceptions."""

import logging
import sys
import threading
from types import TracebackType
from typing import Any

from openai_frontend.logs.formatters import LogFormat, make_formatter
from openai_frontend.logs.handler import NonBlockingHandler

logger = logging.getLogger(__name__)

_STDERR = 2


def log_to_stderr(level: str, form: LogFormat = "text", *, exception_texts: bool = False) -> None:
    """Sets the process's logging up; uvicorn's loggers end here too."""
    handler = NonBlockingHandler(_STDERR, make_formatter(form, exception_texts=exception_texts))
    logging.basicConfig(handlers=[handler])
    set_level(level)
    logging.captureWarnings(True)
    _log_stray_exceptions()


def set_level(level: str) -> None:
    """From now on; `level` is that of our own loggers. Libraries say at the level debug what they
    are sent, so theirs is info at least.
    """
    own = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().setLevel(max(own, logging.INFO))
    logging.getLogger("openai_frontend").setLevel(own)


def _log_stray_exceptions() -> None:
    """Those that nobody catches; Python would write them to stderr, texts and all."""
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread
    sys.unraisablehook = _unraisable


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    logger.critical("an exception ends the process", exc_info=(kind, error, trace))


def _uncaught_in_thread(told: threading.ExceptHookArgs) -> None:
    if told.exc_value is None or told.exc_type is SystemExit:
        return
    name = told.thread.name if told.thread is not None else "unknown"
    trace = (told.exc_type, told.exc_value, told.exc_traceback)
    logger.critical("an exception ends the thread %s", name, exc_info=trace)


def _unraisable(told: Any) -> None:
    where = getattr(told.object, "__qualname__", type(told.object).__qualname__)
    trace = (told.exc_type, told.exc_value, told.exc_traceback)
    logger.error("an exception that nobody could raise, in %s", where, exc_info=trace)
