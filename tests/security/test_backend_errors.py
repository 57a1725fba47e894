"""Error texts of libraries and models stay in the log. CVE-2026-22778 exposed a memory address to a
client, CVE-2025-23320 the name of a shared memory region.
"""

import json

import pytest

from tests.security import engines
from tests.security.guarded import CHAT, check_refused, unharmed


@pytest.fixture
def guarded(guarded_process):
    """An exception that an engine did not raise on purpose is logged with its traceback."""
    with unharmed(guarded_process, may_log=["Traceback (most recent call last)"]) as each:
        yield each


STATUS = {"invalid": 400, "unsupported": 400, "value": 400, "unavailable": 503, "not-found": 404}


@pytest.mark.parametrize("late", ["", " late"])
@pytest.mark.parametrize("kind", engines.FAILURES)
def test_an_engine_error_gets_its_status_and_our_message(guarded, kind, late):
    response = guarded.post(CHAT, {"model": "broken", "cache_salt": kind + late})

    check_refused(response, STATUS.get(kind, 500))


@pytest.mark.parametrize("kind", engines.FAILURES)
def test_an_engine_error_ends_the_stream_without_done(guarded, kind):
    """The stream ends with an error event that exposes no internals."""
    fields = {"model": "broken", "cache_salt": kind + " late", "stream": True}

    response = guarded.post(CHAT, fields)

    event = response.body.partition(b'data: {"error"')[2]
    assert b"[DONE]" not in response.body
    assert event
    for inside in (b"0x", b"/opt", b"canary", b"Traceback"):
        assert inside not in response.body


def test_the_log_has_the_request_id_but_not_the_error_text(guarded):
    """The text may quote the request, so the log has it only with `--log-exception-texts`."""
    fields = {"model": "broken", "cache_salt": "invalid"}

    response = guarded.post(CHAT, fields, "x-request-id: told-in-the-log")

    line = guarded.process.wait_for_line("told-in-the-log failed")
    assert f"text of {len(engines.SECRET_TEXT)} characters omitted" in line
    assert json.loads(response.body)["error"]["type"] == "invalid_request_error"
