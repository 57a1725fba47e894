"""Ctrl-C with running engines. It ends the gateway of the session, so no other test comes later."""

import httpx
import pytest

pytestmark = pytest.mark.engine

LONG = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "stream": True} | {
    "ignore_eos": True,
    "max_tokens": 1900,
}


def test_ctrl_c_waits_for_a_running_stream(default_gateway):
    """A stream that runs during Ctrl-C is answered completely; then the process exits with 0."""
    with httpx.stream("POST", f"{default_gateway.url}/v1/chat/completions", json=LONG) as response:
        lines = response.iter_lines()
        next(lines)
        engines = default_gateway.engine_processes()
        default_gateway.interrupt_group()
        last = [line for line in lines if line][-1]

    assert last == "data: [DONE]"
    assert default_gateway.wait() == 0
    assert len(engines) == 4
    assert [engine for engine in engines if engine.is_running()] == []
