"""What log lines must not contain."""

import asyncio
import gc
import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import openai_frontend
from openai_frontend import engines
from openai_frontend.engines import loader, response_writer
from openai_frontend.errors import InferenceFailed, InvalidRequest, ModelFailed
from openai_frontend.logs import configure, redaction, repeats
from openai_frontend.logs.formatters import LogFormat, make_formatter
from openai_frontend.media import pool as media_pool
from openai_frontend.models import supervisor
from openai_frontend.parsing import guard
from openai_frontend.request_context.context import RequestContext, current
from openai_frontend.runtime import background_tasks
from openai_frontend.serving import error_reply
from openai_frontend.tracing import exporter
from openai_frontend.triton import inprocess

PROMPT = "the canary sings at noon"
KEY = "sk-0123456789abcdefghijABCDEFGHIJ"


@pytest.fixture
def in_request():
    token = current.set(RequestContext("req_1"))
    yield
    current.reset(token)


def record(message: str, *args: object, error: BaseException | None = None, name: str = "x"):
    trace = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord(name, logging.ERROR, __file__, 1, message, args, trace)


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except Exception as caught:  # noqa: BLE001  any exception
        return caught


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    "error",
    [
        raised(ValueError(PROMPT)),
        raised(KeyError(PROMPT)),
        raised(RuntimeError("x"), cause=ValueError(PROMPT)),
        raised(InferenceFailed(PROMPT)),
        raised(ExceptionGroup(PROMPT, [ValueError(PROMPT)])),
    ],
)
def test_texts_of_exceptions_in_requests_are_omitted(
    form: LogFormat, error: Exception, in_request: None
) -> None:
    """The type and the traceback are logged, for causes too, but no text."""
    error.add_note(PROMPT)
    told = make_formatter(form).format(record("failed: %s", error, error=error))

    assert PROMPT not in told
    assert type(error).__name__ in told
    assert "in raised" in told


@pytest.mark.parametrize(
    "name",
    [
        "asyncio",
        "vllm.v1.engine.core",
        inprocess.logger.name,
        response_writer.logger.name,
        "uvicorn.error",
    ],
)
def test_texts_of_exceptions_in_other_tasks_are_omitted(name: str) -> None:
    """Engines and libraries run requests in tasks of their own."""
    error = raised(ValueError(PROMPT))

    assert PROMPT not in make_formatter("json").format(record("failed", error=error, name=name))


async def unretrieved() -> None:
    """Ends with a failed task whose exception is never read."""

    async def fails() -> None:
        raise ValueError(PROMPT)

    task = asyncio.ensure_future(fails())
    await asyncio.wait([task])
    del task
    gc.collect()  # logs it


async def failing_callback() -> None:
    """Ends with a callback that failed on a prompt."""

    def takes(prompt: str) -> None:
        raise ValueError(prompt)

    asyncio.get_running_loop().call_soon(takes, PROMPT)
    await asyncio.sleep(0)


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    ("program", "told"),
    [
        (unretrieved, "Task exception was never retrieved"),
        (failing_callback, "Exception in callback failing_callback.<locals>.takes"),
    ],
)
def test_messages_of_asyncio_do_not_quote_exceptions(
    form: LogFormat, program: Callable[[], Any], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It appends the reprs of tasks and callbacks to its message, without arguments."""
    asyncio.run(program())

    [logged] = caplog.records
    assert PROMPT in logged.getMessage()
    line = make_formatter(form).format(logged)
    assert PROMPT not in line
    assert told in line
    assert PROMPT in str(redaction.Redactor(exception_texts=True).message(logged, of_request=False))


PACKAGE = Path(openai_frontend.__file__).parent
# Modules that log exceptions in a request's own task
IN_REQUEST = {error_reply.logger.name, guard.logger.name}
# Modules that log exceptions without a request
WITHOUT_REQUEST = {
    configure.logger.name,  # uncaught exceptions: the operator has only this line
    background_tasks.logger.name,
    supervisor.logger.name,
    exporter.logger.name,
    loader.logger.name,  # loads
    media_pool.logger.name,  # starts
}


def modules_that_log(*texts: str, below: ModuleType = openai_frontend) -> set[str]:
    """Names of the package's modules whose source contains one of `texts`."""
    folder = Path(str(below.__file__)).parent
    return {
        ".".join([openai_frontend.__name__, *path.relative_to(PACKAGE).with_suffix("").parts])
        for path in folder.rglob("*.py")
        if any(text in path.read_text() for text in texts)
    }


def quoting(names: set[str]) -> set[str]:
    """Those of the loggers that write an exception's text."""
    error = raised(ValueError(PROMPT))
    return {
        name
        for name in names
        if PROMPT in make_formatter("json").format(record("failed", error=error, name=name))
    }


def test_every_logger_of_the_engines_is_redacted() -> None:
    """An engine's exception may quote a request, whichever module logs it; a load's does not."""
    names = modules_that_log("getLogger(__name__)", below=engines)

    assert len(names) > 4
    assert quoting(names) == {loader.logger.name}


def test_every_logger_of_exceptions_is_redacted_or_sees_no_request() -> None:
    """A module that logs exceptions marks its logger, or is listed here with its reason."""
    names = modules_that_log("logger.exception(", "exc_info=", "traceback=True")
    names.remove(repeats.__name__)  # writes to the logger that it gets

    assert quoting(names) == IN_REQUEST | WITHOUT_REQUEST


def test_loggers_below_a_marked_one_inherit_the_mark() -> None:
    """The nearest mark counts, so one logger below can be left out."""
    top, below = logging.getLogger("marked"), logging.getLogger("marked.load")
    redaction.redact_exceptions(top)
    redaction.redact_exceptions(below, redact=False)

    assert quoting({"marked", "marked.a.b", "marked.load", "marked.load.c", "markedly"}) == {
        "marked.load",
        "marked.load.c",
        "markedly",
    }


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (InvalidRequest("'n' is too large"), "'n' is too large"),
        (OSError(28, "No space left on device", f"/x/{PROMPT}"), "No space left on device"),
    ],
)
def test_texts_without_quotes_are_logged(error: Exception, told: str, in_request: None) -> None:
    """Our own error messages and those of the system do not quote a request."""
    assert told in make_formatter("text").format(record("failed: %s", error))
    assert PROMPT not in make_formatter("text").format(record("failed: %s", error))


def test_texts_outside_of_requests_are_logged() -> None:
    """They are all that the operator has."""
    error = raised(ValueError("no such file"))
    at_start = record("EngineCore failed to start.", error=error, name="vllm.v1.engine.core")

    assert "no such file" in make_formatter("text").format(record("x", error=error))
    assert "no such file" in make_formatter("text").format(at_start)


def test_operator_can_enable_texts(in_request: None) -> None:
    """With `exception_texts`, the text is logged."""
    line = make_formatter("json", exception_texts=True).format(
        record("failed", error=raised(ValueError("why")))
    )

    assert json.loads(line)["exception"]["message"] == "why"


@pytest.mark.parametrize(
    "message",
    [
        f"key {KEY}",
        f"Authorization: Bearer {KEY}",
        "authorization: bearer my-own-secret-word",
        "token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.c2lnbmF0dXJl",
    ],
)
@pytest.mark.parametrize("form", ["text", "json"])
def test_secrets_are_replaced(form: LogFormat, message: str) -> None:
    """The log has the first four digits of a key's digest instead."""
    secret = message.split()[-1]
    told = make_formatter(form, exception_texts=True).format(
        record(message, error=raised(ValueError(message)))
    )

    assert secret not in told
    assert told.count(f"(key {hashlib.sha256(secret.encode()).hexdigest()[:4]})") >= 2


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("form", ["text", "json"])
def test_exception_whose_str_fails(form: LogFormat) -> None:
    """Its type and traceback are still logged."""
    told = make_formatter(form).format(
        record("failed: %s", Unprintable(), error=raised(Unprintable()))
    )

    assert told.count("(its message cannot be read)") >= 2
    assert "in raised" in told


FORGED = "x\r\n2026-01-01 00:00:00,000 INFO openai_frontend: all is well\x1b[2K\u2028\x9b1A\x00"


def test_text_lines_cannot_be_forged() -> None:
    """A message is one line; exceptions are indented."""
    error = raised(ValueError(FORGED))
    first, *more = make_formatter("text").format(record("%s", FORGED, error=error)).splitlines()

    assert first.endswith(r"\x1b[2K\u2028\x9b1A\x00")
    assert more
    assert {line[:4] for line in more} == {"    "}


def test_json_lines_cannot_be_forged() -> None:
    """A record is one line without control characters."""
    line = make_formatter("json").format(record("%s", FORGED, error=raised(ValueError(FORGED))))

    assert line.isprintable()
    assert json.loads(line)["message"].startswith(r"x\x0d\x0a2026")


def test_lone_surrogates() -> None:
    """They are replaced, because UTF-8 cannot encode them."""
    made = record("a")
    made.fields = {"model": "\ud800"}

    assert json.loads(make_formatter("json").format(made))["model"] == "?"


def test_long_messages_are_cut() -> None:
    """A model may quote megabytes of its input, and a log line is one write."""
    error = ModelFailed("m", "x" * 15_000_000)
    line = make_formatter("text").format(record("failed: %s", error))

    assert len(line) < 70_000
    assert "more characters)" in line
