import asyncio
import json
import logging
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_frontend import errors
from openai_frontend.logs.repeats import Repeats
from openai_frontend.serving import error_reply
from openai_frontend.serving.error_reply import _INSIDES, http_error, log_failure, reply_for
from openai_frontend.triton import error_codes
from tests.examples import scaled
from tests.fast.auth.key_files import FakeClock

INTERNALS = "core at 0x7f00deadbeef, /opt/secret/model.plan"
GENERIC = "The server had an error while processing your request."

BAD = "invalid_request_error"
LATER = "server_error"
NO_MEMORY = "The server is out of memory for this request. Retry later."
STOPPING = "The server is shutting down."

TOLD = [
    (errors.InvalidRequest("bad", param="n"), 400, "bad", BAD, "n", "invalid_value"),
    (errors.RequestTooLarge("big"), 413, "big", BAD, None, "request_too_large"),
    (errors.ModelNotFound("m?", param="model"), 404, "m?", BAD, "model", "model_not_found"),
    (errors.ModelUnavailable("dead"), 503, "dead", LATER, None, "model_unavailable"),
    (errors.InferenceFailed(INTERNALS), 500, GENERIC, LATER, None, "inference_failed"),
    (ValueError(INTERNALS), 500, GENERIC, LATER, None, None),
    (MemoryError(), 503, NO_MEMORY, LATER, None, "server_overloaded"),
    (asyncio.CancelledError(), 503, STOPPING, LATER, None, "server_draining"),
]

REFUSED = "The model refuses the request; the reason is for the server's operator to see."
FAILED = "The model cannot serve now; the reason is for the server's operator to see."
FOREIGN = [
    (INTERNALS, REFUSED),
    ("object at 0x7f00deadbeef", REFUSED),
    ("cannot read /opt/secret/model.plan", REFUSED),
    ("cannot read '/opt/secret'", REFUSED),
    ('Traceback (most recent call last):\n  File "<string>", line 1', REFUSED),
    ("<class 'vllm.SamplingParams'>", REFUSED),
    ("<vllm.Request object>", REFUSED),
    ("x" * 3000, "x" * 2000),
    ("the prompt has 9 tokens, the context 8", "the prompt has 9 tokens, the context 8"),
    ("input/output and 1/2 and /", "input/output and 1/2 and /"),
    ("see https://example.com/a/b", "see https://example.com/a/b"),
    ("at '#/properties/a', /properties/b", "at '#/properties/a', /properties/b"),
]


PATHS = [
    "model_repository/demo-embedding/1/weights",
    "./weights",
    "../models/x",
    "~/models",
    "weights/model.safetensors",
    "repository/config.pbtxt",
    "/weights",
    "/models/x",
    "/opt/models/x/1/",
    "file:///models",
    "s3://bucket/key",
    "C:\\models",
]
SENTENCES = [
    "Model '{}' does not support Matryoshka embeddings.",
    'cannot open "{}": No such file or directory',
    "failed to load `{}`",
]
BARE = ["no file {} found", "{}: not a model", "see https://example.com/a and {}."]


ANTHROPIC = [
    (errors.InvalidRequest("bad"), "invalid_request_error", "bad"),
    (errors.InvalidRequest("bad", param="n[0]"), "invalid_request_error", "n[0]: bad"),
    (errors.InvalidRequest("bad 'n.m'", param="n"), "invalid_request_error", "bad 'n.m'"),
    (errors.NotAuthenticated("no key"), "authentication_error", "no key"),
    (errors.ModelNotFound("m?"), "not_found_error", "m?"),
    (errors.RateLimited("wait"), "rate_limit_error", "wait"),
    (errors.QueueFull("full"), "overloaded_error", "full"),
    (errors.RequestTimedOut("late"), "timeout_error", "late"),
    (errors.Conflict("busy"), "invalid_request_error", "busy"),
    (ValueError(INTERNALS), "api_error", GENERIC),
]


@pytest.mark.parametrize(("error", "kind", "message"), ANTHROPIC)
def test_anthropics_form_has_its_types_and_no_other_members(error, kind, message):
    reply = reply_for(error).in_form("anthropic", "req_1")

    assert json.loads(reply.body) == {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": "req_1",
    }


def test_kserves_form_has_one_member():
    reply = reply_for(errors.InvalidRequest("bad", param="n")).in_form("kserve", "req_1")

    assert json.loads(reply.body) == {"error": "bad"}


@pytest.mark.parametrize("sentence", [*SENTENCES, *BARE])
@pytest.mark.parametrize("path", PATHS)
def test_paths_are_hidden_relative_or_absolute(path: str, sentence: str) -> None:
    """Only one name, or two names without quotes, may be anything else."""
    if sentence in BARE and path == "/weights":
        return
    message = sentence.format(path)
    error = error_codes.to_exception(error_codes.INVALID_ARG, message)

    assert reply_for(error).message == REFUSED


@pytest.mark.parametrize(
    "message",
    [
        "use 'image/png' or \"audio/wav\"",
        "50/60 tokens, on 1/2/2026, true/false",
        "messages[0].content: yes/no",
        "see https://example.com/models/a/b.json, '#/$defs/a/b' or '/v1/models'",
        "The model 'qwen3' is not loaded.",
    ],
)
def test_other_slashes_are_shown(message: str) -> None:
    error = error_codes.to_exception(error_codes.INVALID_ARG, message)

    assert reply_for(error).message == message


@pytest.mark.parametrize(("message", "told"), FOREIGN)
def test_messages_of_triton_and_engines_are_hidden_if_they_expose_the_server(message, told, caplog):
    """The log always has the message that the reply hides."""
    error = error_codes.to_exception(error_codes.INVALID_ARG, message)

    log_failure(error, "r")

    assert reply_for(error).message == told
    assert (message in caplog.text) == (told != message)


def test_reason_of_a_failed_model_is_hidden_if_it_exposes_the_server():
    assert reply_for(errors.ModelFailed("m", "no /opt/secret/weights")).message == FAILED
    assert (
        reply_for(errors.ModelFailed("m", "it died")).message
        == "The model 'm' cannot serve: it died"
    )


def test_own_messages_may_repeat_the_request():
    assert reply_for(errors.ModelNotFound("'/etc/passwd'")).message == "'/etc/passwd'"


@pytest.mark.parametrize(("error", "status", "message", "type_", "param", "code"), TOLD)
def test_each_failure_has_the_openai_envelope(error, status, message, type_, param, code):
    """The message of a 500 hides the internal error."""

    failure = reply_for(error)

    assert status == failure.status
    words = {"message": message, "type": type_, "param": param, "code": code}
    assert {"error": words} == json.loads(failure.body)


HEADERS = [
    (errors.ModelUnavailable("x"), {"retry-after": "5", "retry-after-ms": "5000"}),
    (errors.ServerOverloaded("x"), {"retry-after": "1", "retry-after-ms": "1000"}),
    (errors.QueueFull("x", retry_after_s=2.25), {"retry-after": "3", "retry-after-ms": "2250"}),
    (errors.InferenceFailed("x"), {"x-should-retry": "false"}),
    (ValueError("x"), {"x-should-retry": "false"}),
    (errors.InvalidRequest("x"), {}),
    (errors.RequestTooLarge("x"), {"connection": "close"}),
]


@pytest.mark.parametrize(("error", "headers"), HEADERS)
def test_headers_set_retry_delays_and_disable_useless_retries(error, headers):
    assert headers == reply_for(error).headers


def test_http_errors_have_the_same_envelope():
    failure = http_error(415, "no gzip", "unsupported_content_encoding")

    words = {
        "message": "no gzip",
        "type": "invalid_request_error",
        "param": None,
        "code": "unsupported_content_encoding",
    }
    assert (415, {"error": words}) == (failure.status, json.loads(failure.body))


LOGGED = [
    (errors.InferenceFailed(INTERNALS), logging.ERROR),
    (ValueError(INTERNALS), logging.ERROR),
    (errors.RequestCancelled("gone"), logging.DEBUG),
]


@pytest.mark.parametrize(("error", "level"), LOGGED)
def test_log_has_the_request_id_and_the_hidden_error(caplog, error, level):
    with caplog.at_level(logging.DEBUG, logger="openai_frontend"):
        log_failure(error, "req_1")

    [record] = caplog.records
    assert level == record.levelno
    assert "req_1" in caplog.text
    assert str(error) in caplog.text


@pytest.mark.parametrize("part", ["x", "/opt", "0", " /a", "<a", 'File "'])
def test_only_the_beginning_of_a_long_message_is_searched(part, monkeypatch):
    """A model may quote megabytes of its input."""
    searched = []

    class Search:
        def search(self, text):
            searched.append(len(text))
            return _INSIDES.search(text)

    monkeypatch.setattr(error_reply, "_INSIDES", Search())
    error = error_codes.to_exception(error_codes.INVALID_ARG, part * (15_000_000 // len(part)))

    reply = reply_for(error)

    assert searched == [2300]
    assert len(reply.message) <= 2000


def test_internals_at_the_cut_are_hidden():
    """No beginning of a path is shown."""
    error = error_codes.to_exception(error_codes.INVALID_ARG, "x" * 1995 + " /opt/secret/a")

    assert reply_for(error).message == REFUSED


def failures_logged(caplog, clock, *messages):
    """The levels and texts of the log of failures."""
    repeats = Repeats(clock)
    with caplog.at_level(logging.DEBUG, logger="openai_frontend"):
        for at, (message, later_s) in enumerate(messages):
            clock.now_s += later_s
            log_failure(errors.ModelFailed("m", message), f"req_{at}", repeats)
    return [(record.levelname, record.getMessage().partition(":")[0]) for record in caplog.records]


def test_failure_with_the_same_reason_is_an_error_once_a_minute(caplog):
    """Between two errors, the same failures of other requests are in the log at the level DEBUG."""
    dead, gone = "no /opt/secret/weights", "no /opt/secret/config"

    logged = failures_logged(
        caplog, FakeClock(), (dead, 0), (dead, 1), (gone, 1), (dead, 57), (dead, 1), (dead, 1)
    )

    assert [level for level, _ in logged] == ["ERROR", "DEBUG", "ERROR", "DEBUG", "ERROR", "DEBUG"]
    assert "req_4" in logged[4][1]
    assert "(and 2 more times since it was last logged)" in caplog.text


def test_reasons_that_are_remembered_are_bounded():
    repeats = Repeats(FakeClock())
    for number in range(1000):
        assert repeats.suppressed((number,)) == 0

    assert len(repeats._logged) == 256


@pytest.mark.parametrize("error", [errors.InvalidRequest("x"), errors.ModelUnavailable("x")])
def test_errors_that_the_client_sees_in_full_are_not_logged(caplog, error):
    with caplog.at_level(logging.DEBUG):
        log_failure(error, "req_1")

    assert caplog.records == []


@given(st.text("aZ0 ./'~:\\-@<x\"h", min_size=1, max_size=6))
@settings(max_examples=scaled(60))
def test_search_is_linear_in_what_is_shown(part):
    """In CPU time, which does not depend on how busy the machine is."""
    error = error_codes.to_exception(error_codes.INVALID_ARG, part * (15_000_000 // len(part)))
    began_s = time.thread_time()

    reply_for(error)

    assert time.thread_time() - began_s < 0.03
