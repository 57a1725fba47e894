"""Sets up the process' logging: handler, levels, and exceptions that nothing catches."""

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
    """uvicorn's loggers propagate to it too."""
    handler = NonBlockingHandler(_STDERR, make_formatter(form, exception_texts=exception_texts))
    logging.basicConfig(handlers=[handler])
    _set_level(level)
    logging.captureWarnings(True)
    _log_stray_exceptions()


def _set_level(level: str) -> None:
    """Sets the level of our own loggers. Libraries log received data at level debug, so they log
    at info or above.
    """
    own = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().setLevel(max(own, logging.INFO))
    logging.getLogger("openai_frontend").setLevel(own)


def _log_stray_exceptions() -> None:
    """Python would write uncaught exceptions to stderr with their texts."""
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread
    sys.unraisablehook = _unraisable


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    logger.critical("uncaught exception; the process exits", exc_info=(kind, error, trace))


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is None or args.exc_type is SystemExit:
        return
    name = args.thread.name if args.thread is not None else "unknown"
    trace = (args.exc_type, args.exc_value, args.exc_traceback)
    logger.critical("uncaught exception; thread %s exits", name, exc_info=trace)


def _unraisable(args: Any) -> None:
    where = getattr(args.object, "__qualname__", type(args.object).__qualname__)
    trace = (args.exc_type, args.exc_value, args.exc_traceback)
    logger.error("unraisable exception in %s", where, exc_info=trace)
