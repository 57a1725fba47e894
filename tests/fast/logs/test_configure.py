"""The process' log as it is set up at start-up."""

import contextlib
import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest

from openai_frontend.logs.configure import log_to_stderr
from openai_frontend.logs.formatters import LogFormat
from openai_frontend.middleware.request_id import RequestId
from openai_frontend.request_context.context import current_request
from tests.fast.middleware.asgi import call, echo
from tests.process_state import log_restored

logger = logging.getLogger("openai_frontend.anything")


@contextlib.contextmanager
def own_log(form: LogFormat = "text", level: str = "info") -> Iterator[None]:
    """The process' log instead of pytest's handlers."""
    root = logging.getLogger()
    with log_restored():
        root.handlers.clear()
        log_to_stderr(level, form)
        yield
        for handler in root.handlers:
            handler.flush()


async def test_lines_of_a_request_have_its_id(capfd: pytest.CaptureFixture[str]) -> None:
    """The id is added to the lines of any logger."""

    async def app(scope, receive, send):
        logger.warning("something about %s", "it")
        await echo(scope, receive, send)

    with own_log():
        await call(RequestId(app), headers=[(b"x-request-id", b"abc-1")])

    assert "WARNING [abc-1] openai_frontend.anything: something about it" in capfd.readouterr().err


async def test_id_is_not_repeated(capfd: pytest.CaptureFixture[str]) -> None:
    """A message that contains the id does not get it again."""

    async def app(scope, receive, send):
        logger.error("request %s failed", current_request().request_id)
        await echo(scope, receive, send)

    with own_log():
        await call(RequestId(app), headers=[(b"x-request-id", b"abc-1")])

    assert capfd.readouterr().err.count("abc-1") == 1


def test_lines_outside_of_requests_have_no_id(capfd: pytest.CaptureFixture[str]) -> None:
    """The line has only time, level, logger and message."""
    with own_log():
        logger.warning("alone")

    assert "WARNING openai_frontend.anything: alone" in capfd.readouterr().err


async def test_json_line(capfd: pytest.CaptureFixture[str]) -> None:
    """A record of any logger is one JSON object."""

    async def app(scope, receive, send):
        logging.getLogger("uvicorn.error").warning("two\nlines")
        await echo(scope, receive, send)

    with own_log("json"):
        await call(RequestId(app), headers=[(b"x-request-id", b"abc-1")])

    line = json.loads(capfd.readouterr().err)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "uvicorn.error",
        "message": "two\\x0alines",
        "request_id": "abc-1",
    }


def test_debug_level_applies_only_to_our_loggers(capfd: pytest.CaptureFixture[str]) -> None:
    """Libraries log received data at this level."""
    with own_log(level="debug"):
        logging.getLogger("httpcore.http11").debug("headers: secret")
        logger.debug("ours")

    assert "ours" in (told := capfd.readouterr().err)
    assert "secret" not in told


def test_uncaught_exceptions_are_logged(capfd: pytest.CaptureFixture[str]) -> None:
    """Those of threads, of destructors and warnings become log lines too."""
    with own_log("json"):
        thread = threading.Thread(target=lambda: 1 / 0, name="worker")
        thread.start()
        thread.join()
        sys.excepthook(KeyError, KeyError("x"), None)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("old", stacklevel=1)
        unraisable = io.BytesIO()
        sys.unraisablehook(
            type("Told", (), dict(zip(
                ("exc_type", "exc_value", "exc_traceback", "object", "err_msg"),
                (OSError, OSError(5, "Input/output error"), None, unraisable.close, None),
                strict=True,
            )))()
        )  # fmt: skip

    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [(line["logger"], line.get("exception", {}).get("type")) for line in lines] == [
        ("openai_frontend.logs.configure", "ZeroDivisionError"),
        ("openai_frontend.logs.configure", "KeyError"),
        ("py.warnings", None),
        ("openai_frontend.logs.configure", "OSError"),
    ]
    assert "worker" in lines[0]["message"]
