"""Headers that describe the client and its trace: malformed ones are ignored; nothing raises."""

import ipaddress
import re
from typing import Any

from starlette.types import Receive, Scope, Send

from openai_frontend.middleware.proxy_headers import ProxyHeaders
from openai_frontend.tracing import read_trace_context
from scripts.fuzz import loop

_PROXY = "10.0.0.1"

WORDS = (
    *("x-forwarded-for:", "x-forwarded-proto:", "forwarded:", "traceparent:", "tracestate:", "\n"),
    *("for=", "for=10.0.0.2", 'for="[::1]:80"', "proto=https", "by=", ";", ",", "unknown", "_a"),
    *("10.0.0.2", "::ffff:10.0.0.1", "1.2.3.4:99999", "[::1]", "fe80::1%a", "https", '"', "\\"),
    *("00-", "a" * 32, "b" * 16, "-01", "ff-", "0" * 32),
)
SEEDS = (
    b"x-forwarded-for:1.2.3.4, 10.0.0.2\nx-forwarded-proto:https",
    b'forwarded:for="[2001:db8::1]:80";proto=https, for=10.0.0.2;by=_a',
    b"traceparent:00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01\ntracestate:a=1\ntracestate:b=2",
    b"traceparent:01-" + b"a" * 32 + b"-" + b"0" * 16 + b"-00-more",
    b"x-forwarded-for:1.2.3.4\nforwarded:for=1.2.3.5",
)


def check(data: bytes) -> None:
    lines = [line.partition(b":") for line in data.split(b"\n")]
    headers = [(name.lower(), value.strip()) for name, _, value in lines]

    caller = read_trace_context(headers)
    if caller is not None:
        assert re.fullmatch("[0-9a-f]{32}", caller.trace_id)
        assert re.fullmatch("[0-9a-f]{16}", caller.span_id)
        assert int(caller.trace_id, 16)
        assert int(caller.span_id, 16)
        assert caller.state.isascii()
    scope = loop.run(_believed(headers))
    host, port = scope["client"]
    ipaddress.ip_address(host)
    assert port >= 0
    assert scope["scheme"] in ("http", "https")


async def _believed(headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    """Return the scope that the application receives behind a trusted proxy."""
    seen: dict[str, Any] = {}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.update(scope)

    scope = {"type": "http", "scheme": "http", "client": (_PROXY, 1), "headers": headers}
    await ProxyHeaders(app, trusted=["10.0.0.0/8"])(scope, _nothing, _nothing)
    return seen


async def _nothing(*_: Any) -> Any:
    raise AssertionError("nobody reads or writes here")
