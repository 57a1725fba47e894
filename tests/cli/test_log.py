"""What a line of the log holds."""

import contextlib
import logging
from collections.abc import Iterator

import pytest

from openai_frontend.cli.log import log_to_stderr
from openai_frontend.middleware.request_id import RequestId
from tests.middleware.asgi import call, echo

logger = logging.getLogger("openai_frontend.anything")


@contextlib.contextmanager
def own_log() -> Iterator[None]:
    """The log as the process writes it, in place of pytest's own handlers."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers.clear()
    log_to_stderr("info")
    try:
        yield
    finally:
        root.handlers[:], root.level = before, level


async def test_line_of_a_request(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever logs, a line that is written for a request tells its id."""

    async def app(scope, receive, send):
        logger.warning("something about %s", "it")
        await echo(scope, receive, send)

    with own_log():
        await call(RequestId(app), headers=[(b"x-request-id", b"abc-1")])

    assert "WARNING [abc-1] openai_frontend.anything: something about it" in capsys.readouterr().err


async def test_id_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A message that tells the id itself is not told it again."""

    async def app(scope, receive, send):
        logger.error("request %s failed", scope["state"]["request_id"])
        await echo(scope, receive, send)

    with own_log():
        await call(RequestId(app), headers=[(b"x-request-id", b"abc-1")])

    assert capsys.readouterr().err.count("abc-1") == 1


def test_line_of_no_request(capsys: pytest.CaptureFixture[str]) -> None:
    """Outside of a request a line has no id."""
    with own_log():
        logger.warning("alone")

    assert "WARNING openai_frontend.anything: alone" in capsys.readouterr().err
