"""No request starts a program, binds a port, reaches out, or opens a file (CVE-2026-42208,
CVE-2026-42271).

An audit hook inside the gateway's process (tests/security/engines.py) has seen every program,
connection and file since its models were loaded; native code it does not see, so the process'
children and its listening ports are looked at too.
"""

import json

import psutil
import pytest

from tests.security.guarded import CHAT, KEY, REQUIRED, Guarded

COMMANDS = [
    "; touch /tmp/pwned",
    "$(touch /tmp/pwned)",
    "`touch /tmp/pwned`",
    "| id",
    "' OR 1=1; --",
]
REACHING = ("subprocess.", "os.", "pty.", "socket.", "urllib.", "webbrowser.", "pickle.", "ctypes.",
            "shutil.")  # fmt: skip


def everything(guarded: Guarded, text: str) -> None:
    """Every address that takes text, with it at every place."""
    for path, required in REQUIRED.items():
        guarded.post(path, {})
        for name in required:
            guarded.post(path, {name: text})
    tool = {"type": "function", "function": {"name": "f", "description": text}}
    for fields in (
        {"messages": [{"role": "user", "content": text}], "tools": [tool], "tool_choice": "none"},
        {"messages": [{"role": "user", "content": text}], "stream": True, "user": text},
        {"model": "mirror", "response_format": {"type": "json_object"}},
        {"model": text, "chat_template_kwargs": {"x": text}},
        {"model": "mock", "lora_name": text},
    ):
        guarded.post(CHAT, fields)
    for line in ("GET /v1/models", "GET /metrics", "GET /openapi.json", "GET /docs", "GET /v2",
                 "GET /v2/models/mock/config", "GET /health/ready",
                 "POST /v2/repository/index"):  # fmt: skip
        guarded.ask(line, b"{}" if line.startswith("POST") else b"", f"x-request-id: {text[:20]}")


@pytest.fixture(scope="module")
def warm(guarded_process):
    """Some things are imported, and templates compiled, when they are first used."""
    everything(guarded_process, "hello")
    return guarded_process


@pytest.mark.parametrize("text", COMMANDS)
def test_requests(warm, guarded, text):
    """Nothing happens in the process but answers."""
    before = len(guarded.recorded())
    children = psutil.Process(guarded.process.pid).children(recursive=True)

    everything(guarded, text)

    happened = guarded.recorded()[before:]
    reached = [each for each in happened if each[0].startswith(REACHING)]
    opened = [args[0] for event, args in happened if event == "open"]
    assert reached == []
    assert opened == []
    assert psutil.Process(guarded.process.pid).children(recursive=True) == children


def test_the_hook_sees(guarded_process):
    """It has seen the models' files being opened, and would see a program."""
    events = {event for event, _ in guarded_process.recorded()}

    assert "open" in events
    assert "exec" in events


def test_addresses_that_run_things(guarded):
    """There is no address that tries a connection, a prompt or a command."""
    for path in ("/mcp-rest/test/connection", "/prompts/test", "/health/test_connection",
                 "/v1/invocations", "/collective_rpc", "/pause", "/reset_prefix_cache", "/sleep",
                 "/start_profile", "/v2/trace/setting", "/key/generate",
                 "/config/update"):  # fmt: skip
        response = guarded.ask(f"POST {path}", b"{}", key=KEY)
        assert response.status in (404, 405, 501), (path, response)
        assert "error" in json.loads(response.body)
