"""What libraries and models say of their failures stays in the log: CVE-2026-22778 told a client an
address in memory, CVE-2025-23320 the name of a shared memory region.
"""

import json

import pytest

from tests.security import engines
from tests.security.guarded import CHAT, check_refused, unharmed


@pytest.fixture
def guarded(guarded_process):
    """What an engine did not mean to raise is logged with its traceback."""
    with unharmed(guarded_process, may_log=["Traceback (most recent call last)"]) as each:
        yield each


STATUS = {"invalid": 400, "unsupported": 400, "value": 400, "unavailable": 503, "not-found": 404}


@pytest.mark.parametrize("late", ["", " late"])
@pytest.mark.parametrize("kind", engines.FAILURES)
def test_answer(guarded, kind, late):
    """A failure has its status, and our own words."""
    response = guarded.post(CHAT, {"model": "broken", "cache_salt": kind + late})

    check_refused(response, STATUS.get(kind, 500))


@pytest.mark.parametrize("kind", engines.FAILURES)
def test_stream(guarded, kind):
    """Within a stream too: an error event, and no end that pretends."""
    fields = {"model": "broken", "cache_salt": kind + " late", "stream": True}

    response = guarded.post(CHAT, fields)

    event = response.body.partition(b'data: {"error"')[2]
    assert b"[DONE]" not in response.body
    assert event
    for inside in (b"0x", b"/opt", b"canary", b"Traceback"):
        assert inside not in response.body


def test_log(guarded):
    """The operator finds the request by its id; the text itself may quote the request, and is there
    where `--log-exception-texts` says so.
    """
    fields = {"model": "broken", "cache_salt": "invalid"}

    response = guarded.post(CHAT, fields, "x-request-id: told-in-the-log")

    line = guarded.process.wait_for_line("told-in-the-log failed")
    assert f"text of {len(engines.SECRET_TEXT)} characters omitted" in line
    assert json.loads(response.body)["error"]["type"] == "invalid_request_error"
