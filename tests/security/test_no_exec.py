"""No request starts a program, binds a port, opens a connection or opens a file (CVE-2026-42208,
CVE-2026-42271).

An audit hook inside the gateway's process (tests/security/engines.py) records every program,
connection and file since its models were loaded. It does not see native code, so these tests also
check the process's children and listening ports.
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
# A machine that stops for a second makes the watchdog log a traceback, with lines of source files.
BLOCKED = "event loop blocked"
SOURCES = (".py", "/bin/openai-frontend")  # the second is the first line of every traceback
REACHING = ("subprocess.", "os.", "pty.", "socket.", "urllib.", "webbrowser.", "pickle.", "ctypes.",
            "shutil.")  # fmt: skip


def own_memory(pid: int) -> set[str]:
    """What `gc_tuning` reads by its own clock, a second or more after the models have changed."""
    return {f"/proc/{pid}/stat", f"/proc/{pid}/statm"}


def everything(guarded: Guarded, text: str) -> None:
    """Send the text in every field of every endpoint that accepts text."""
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
    """The first use imports modules and compiles templates, so do that before the test."""
    everything(guarded_process, "hello")
    return guarded_process


@pytest.mark.parametrize("text", COMMANDS)
def test_requests_start_no_program_and_open_no_file(warm, guarded, text):
    before, logged = len(guarded.recorded()), len(guarded.log())
    children = psutil.Process(guarded.process.pid).children(recursive=True)

    everything(guarded, text)

    happened = guarded.recorded()[before:]
    reached = [each for each in happened if each[0].startswith(REACHING)]
    opened = [args[0] for event, args in happened if event == "open"]
    opened = [path for path in opened if path.strip("'") not in own_memory(guarded.process.pid)]
    if BLOCKED in guarded.log()[logged:]:
        opened = [path for path in opened if not path.strip("'").endswith(SOURCES)]
    assert reached == []
    assert opened == []
    assert psutil.Process(guarded.process.pid).children(recursive=True) == children


def test_the_audit_hook_records_files_and_code(guarded_process):
    """It recorded that the models' files were opened and would record a program."""
    events = {event for event, _ in guarded_process.recorded()}

    assert "open" in events
    assert "exec" in events


def test_no_endpoint_tests_a_connection_prompt_or_command(guarded):
    for path in ("/mcp-rest/test/connection", "/prompts/test", "/health/test_connection",
                 "/v1/invocations", "/collective_rpc", "/pause", "/reset_prefix_cache",
                 "/start_profile", "/key/generate",
                 "/config/update"):  # fmt: skip
        response = guarded.ask(f"POST {path}", b"{}", key=KEY)
        assert response.status in (404, 405, 501), (path, response)
        assert "error" in json.loads(response.body)
