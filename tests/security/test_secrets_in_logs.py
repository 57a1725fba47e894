"""The log contains no key, prompt or answer, whatever fails (CVE-2024-9606; Triton's "redact
restriction header values from startup log"). The gateway logs as much as it can: level debug and
each request.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.security.guarded import ANSWER, CHAT, KEY, REQUIRED, Guarded

PROMPT = "canary prompt 91ce07"


def requests() -> list[tuple[str, dict[str, Any], list[str]]]:
    """Valid and invalid requests with the prompt in every field."""
    said = [{"role": "user", "content": PROMPT}]
    tool = {"type": "function", "function": {"name": "f", "description": PROMPT}}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": f'"{PROMPT}"'}}
    return [
        (CHAT, {"messages": said}, []),
        (CHAT, {"messages": said, "stream": True}, []),
        (CHAT, {"messages": said, "model": "nobody"}, []),
        (CHAT, {"messages": said, "model": "broken", "cache_salt": "runtime late"}, []),
        (CHAT, {"messages": said, "model": "broken", "cache_salt": "invalid"}, []),
        (CHAT, {"messages": said, "temperature": 9}, []),
        (CHAT, {"messages": PROMPT}, []),
        (CHAT, {"messages": [{"role": PROMPT, "content": PROMPT}]}, []),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [call]}]}, []),
        (CHAT, {"messages": said, "tools": [tool], "tool_choice": "none"}, []),
        (CHAT, {"messages": said, "stop": PROMPT, "user": PROMPT, "metadata": {"a": PROMPT}}, []),
        (CHAT, {"messages": said, "unknown_field": PROMPT}, []),
        (CHAT, {"messages": said, "chat_template_kwargs": {"x": PROMPT}}, []),
        (CHAT, {"messages": said, "structured_outputs": {"regex": PROMPT}}, []),
        (CHAT, {"messages": said, "model": "teller"}, []),
        (CHAT, {"messages": said, "model": "teller", "stream": True}, []),
        (CHAT, {"messages": said, "model": "teller", "stream": True, "tools": [tool]}, []),
        (CHAT, {"messages": said, "model": "teller", "tools": [tool]}, []),
        (CHAT, {"messages": said}, ["content-encoding: gzip"]),
        (CHAT, {"messages": said}, ["transfer-encoding: chunked"]),
        *((path, {name: PROMPT}, []) for path in REQUIRED for name in REQUIRED[path]
          if name not in ("model", "messages")),
        ("/v1/rerank", {"documents": [PROMPT], "query": PROMPT}, []),
        ("/v2/models/mock/infer", {"inputs": [{"name": "text_input", "datatype": "BYTES",
                                               "shape": [1], "data": [PROMPT]}]}, []),
        ("/v2/models/nobody/generate", {"text_input": PROMPT}, []),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def log(guarded_process: Guarded) -> str:
    """The gateway's log after all of these requests."""
    statuses = set()
    for path, fields, headers in requests():
        statuses.add(guarded_process.post(path, fields, *headers).status)
        body = json.dumps({**REQUIRED.get(path, {}), **fields}).encode()
        for key in (None, KEY + "x", "sk-metrics"):
            guarded_process.ask(f"POST {path}", body, *headers, key=key)
        guarded_process.ask(f"POST {path}?api_key=x", body[: len(body) // 2], *headers)
        guarded_process.ask(f"POST {path}", body, f"x-api-key: {KEY}", key=None)
    assert {200, 400, 404, 500} <= statuses
    return guarded_process.log()


@pytest.mark.parametrize("secret", [KEY, PROMPT, ANSWER, KEY[3:], "sk-metrics", "sk-tenant-a"])
def test_the_log_contains_no_secret(log, secret):
    """It does not contain the part of a key after `sk-` either."""
    assert secret not in log


def test_the_log_contains_every_request(log):
    """So a missing secret is missing although the request was logged."""
    assert log.count(f"POST {CHAT} ") > 50
    assert "DEBUG" in log


def test_the_command_line_contains_no_key(guarded):
    """Other users of the machine can read the command line."""
    command = Path(f"/proc/{guarded.process.pid}/cmdline").read_bytes()

    assert KEY.encode() not in command
