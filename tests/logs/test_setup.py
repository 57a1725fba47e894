"""What a line of the log holds, and where it goes."""

import contextlib
import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest

from openai_frontend.logs.formatters import LogFormat
from openai_frontend.logs.setup import log_to_stderr
from openai_frontend.middleware.request_id import RequestId
from tests.middleware.asgi import call, echo
from tests.process_state import log_restored

logger = logging.getLogger("openai_frontend.anything")


@contextlib.contextmanager
def own_log(form: LogFormat = "text", level: str = "info") -> Iterator[None]:
    """The log as the process writes it, in place of pytest's own handlers."""
    root = logging.getLogger()
    with log_restored():
        root.handlers.clear()
        log_to_stderr(level, form)
        yield
        for handler in root.handlers:
            handler.flush()


async def test_line_of_a_request(capfd: pytest.CaptureFixture[str]) -> None:
    """Whoever logs, a line that is written for a request tells its id."""

    async def app(scope, receive, send):
        logger.warning("something about %s", "it")
        await echo(scope, receive, send)

    with own_log():
        await call(RequestId(app), headers=[(b"x-request-id", b"abc-1")])

    assert "WARNING [abc-1] openai_frontend.anything: something about it" in capfd.readouterr().err


async def test_id_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    """A message that tells the id itself is not told it again."""

    async def app(scope, receive, send):
        logger.error("request %s failed", scope["state"]["request_id"])
        await echo(scope, receive, send)

    with own_log():
        await call(RequestId(app), headers=[(b"x-request-id", b"abc-1")])

    assert capfd.readouterr().err.count("abc-1") == 1


def test_line_of_no_request(capfd: pytest.CaptureFixture[str]) -> None:
    """Outside of a request a line has no id."""
    with own_log():
        logger.warning("alone")

    assert "WARNING openai_frontend.anything: alone" in capfd.readouterr().err


async def test_json(capfd: pytest.CaptureFixture[str]) -> None:
    """In JSON a line is one object, whoever has logged it."""

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


def test_levels(capfd: pytest.CaptureFixture[str]) -> None:
    """The level debug is for our own lines: libraries say there what they are sent."""
    with own_log(level="debug"):
        logging.getLogger("httpcore.http11").debug("headers: secret")
        logger.debug("ours")

    assert "ours" in (told := capfd.readouterr().err)
    assert "secret" not in told


def test_stray_exceptions(capfd: pytest.CaptureFixture[str]) -> None:
    """What nobody catches is a line as any other: of a thread, of a destructor, of Python."""
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
        ("openai_frontend.logs.setup", "ZeroDivisionError"),
        ("openai_frontend.logs.setup", "KeyError"),
        ("py.warnings", None),
        ("openai_frontend.logs.setup", "OSError"),
    ]
    assert "worker" in lines[0]["message"]
