"""A pytest plugin that checks every response that any client of the suite receives.

A violation fails the test in which it occurs, even if the test's client ignores it.
"""

import inspect
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import httpx2
import orjson
import pytest

from tests.message_rules import MessageRules
from tests.response_rules import ResponseRules, check_response, named
from tests.sdk_types import (
    EVENTS,
    check_anthropic_body,
    check_anthropic_event,
    check_body,
    check_error,
    check_event,
    check_response_event,
)
from tests.stream_rules import Asked, StreamRules

# KServe's responses below /v2 have rules of their own.
_OURS = re.compile(r"/v1/|/(classify|pooling|rerank|score|tokenize|detokenize)$")
VIOLATIONS: list[str] = []
_ERROR = {"type", "message"}  # members of an error


class Exchange:
    """One request and its response, fed as it arrives. Reports to VIOLATIONS, and never raises."""

    def __init__(self, request: Any, response: Any) -> None:
        self._path = request.url.path
        messages = self._path.startswith("/v1/messages")
        self._anthropic = messages or "anthropic-version" in request.headers
        self._messages = MessageRules() if messages else None
        self._name = f"{request.method} {self._path}"
        self._failed = response.status_code >= 400
        kind = response.headers.get("content-type", "")
        self._streams = kind.startswith("text/event-stream")
        self._rules = _rules(request) if self._streams else None
        in_items = self._streams and self._path == "/v1/responses"
        self._responses = ResponseRules() if in_items else None
        self._body = bytearray()  # bytes would be copied with each piece
        self._attempt(self._check_headers, response)

    def feed(self, data: bytes) -> None:
        """Adds a piece of the body."""
        self._body += data
        if self._streams:
            *events, self._body = self._body.split(b"\n\n")
            for event in events:
                self._attempt(self._check_event, bytes(event))

    def end(self) -> None:
        """The body ended normally."""
        self._attempt(self._check_end, bytes(self._body))

    def _check_headers(self, response: Any) -> None:
        if not response.headers.get("x-request-id"):
            raise ValueError("the answer has no x-request-id")
        if self._messages is not None:
            same = response.headers.get("request-id") == response.headers["x-request-id"]
            if not same:
                raise ValueError("the answer has no request-id, or another one")

    def _check_event(self, event: bytes) -> None:
        if event.startswith(b":"):  # a comment that keeps the connection alive
            return
        if self._responses is not None:
            name, data = named(event)
            check_response_event(data)
            self._responses.feed(name, data)
            return
        if self._messages is not None:
            name, data = named(event)
            check_anthropic_event(data)
            self._messages.feed(name, data)
            return
        if not event.startswith(b"data: ") or b"\n" in event:
            raise ValueError(f"an event is not one line of data: {event!r}")
        data = event.removeprefix(b"data: ")
        check_event(self._path, data)
        if self._rules is not None:
            self._rules.feed(data.decode())

    def _check_end(self, body: bytes) -> None:
        if self._streams:
            if body:
                raise ValueError(f"the stream ends within an event: {body!r}")
            for rules in (self._rules, self._responses, self._messages):
                if rules is not None:
                    rules.finish()
        elif self._failed and self._anthropic:
            check_anthropic_error(body)
        elif self._failed:
            check_error(body)
        elif self._path == "/v1/responses":
            check_body(self._path, body)
            check_response(orjson.loads(body))
        elif self._anthropic:
            check_anthropic_body(self._path, body)
        else:
            check_body(self._path, body)

    def _attempt(self, check: Callable[..., None], *args: Any) -> None:
        try:
            check(*args)
        except (AssertionError, ValueError, KeyError, TypeError) as error:
            VIOLATIONS.append(f"{self._name}: {type(error).__name__}: {error}")


def check_anthropic_error(body: bytes) -> None:
    """Raises ValueError unless the body has exactly the members of Anthropic's errors."""
    error = orjson.loads(body)
    if error.keys() != {"type", "error", "request_id"} or error["error"].keys() != _ERROR:
        raise ValueError(f"not an error of Anthropic's: {body!r}")


def _rules(request: Any) -> StreamRules | None:
    if request.url.path not in EVENTS:
        return None
    asked = Asked.by(orjson.loads(request.content))
    if request.extensions.get("force_include_usage"):  # a server setting
        asked = replace(asked, include_usage=True)
    return StreamRules(asked, chat="chat" in request.url.path)


def _read_along(request: Any, response: Any, tee: Callable[..., Any]) -> Any:
    if _OURS.search(request.url.path) and request.method != "HEAD":
        response.stream = tee(response.stream, Exchange(request, response))
    return response


def _sync_tee(stream_type: type) -> type:
    class Tee(stream_type):  # type: ignore[misc]
        def __init__(self, stream: Any, exchange: Exchange) -> None:
            self._stream, self._exchange = stream, exchange

        def __iter__(self) -> Iterator[bytes]:
            for data in self._stream:
                self._exchange.feed(data)
                yield data
            self._exchange.end()

        def close(self) -> None:
            self._stream.close()

    return Tee


def _async_tee(stream_type: type) -> type:
    class Tee(stream_type):  # type: ignore[misc]
        def __init__(self, stream: Any, exchange: Exchange) -> None:
            self._stream, self._exchange = stream, exchange

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for data in self._stream:
                self._exchange.feed(data)
                yield data
            self._exchange.end()

        async def aclose(self) -> None:
            await self._stream.aclose()

    return Tee


def _sync(transport: Any, tee: type) -> Callable[..., Any]:
    handle = transport.handle_request

    def handle_request(self: Any, request: Any) -> Any:
        return _read_along(request, handle(self, request), tee)

    return handle_request


def _async(transport: Any, tee: type) -> Callable[..., Any]:
    handle = transport.handle_async_request

    async def handle_async_request(self: Any, request: Any) -> Any:
        return _read_along(request, await handle(self, request), tee)

    return handle_async_request


def _with_certificates(transport: Any, certificates: ssl.SSLContext) -> Callable[..., None]:
    plain = transport.__init__

    def init(self: Any, verify: Any = True, *arguments: Any, **options: Any) -> None:
        plain(self, certificates if verify is True else verify, *arguments, **options)

    return init


@pytest.fixture(scope="session", autouse=True)
def one_ssl_context() -> Iterator[None]:
    """Clients share the trusted certificates: to load them takes 24 ms of CPU time per client."""
    certificates = httpx.create_ssl_context()
    with pytest.MonkeyPatch.context() as patch:
        for http in (httpx, httpx2):
            for transport in (http.HTTPTransport, http.AsyncHTTPTransport):
                patch.setattr(transport, "__init__", _with_certificates(transport, certificates))
        yield


@pytest.fixture(scope="session", autouse=True)
def clients_are_patient() -> Iterator[None]:
    """Requests without a timeout of their own wait a minute instead of httpx's 5 s, which a server
    on a busy machine may need for any answer. No test expects that timeout.
    """
    default: httpx.Timeout = inspect.signature(httpx.get).parameters["timeout"].default
    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "read", "write", "pool"):
            patch.setattr(default, name, 60.0)
        assert httpx.Client().timeout.read == 60
        yield


@pytest.fixture(scope="session", autouse=True)
def every_client_is_read_along() -> Iterator[None]:
    """Patches both httpx packages (the SDK uses the second): sync, async and in-process clients."""
    with pytest.MonkeyPatch.context() as patch:
        for http in (httpx, httpx2):
            sync_tee, async_tee = _sync_tee(http.SyncByteStream), _async_tee(http.AsyncByteStream)
            plain = http.HTTPTransport
            patch.setattr(plain, "handle_request", _sync(plain, sync_tee))
            for transport in (http.AsyncHTTPTransport, http.ASGITransport):
                handle = _async(transport, async_tee)
                patch.setattr(transport, "handle_async_request", handle)
        yield


@pytest.fixture(autouse=True)
def every_answer_is_in_order() -> Iterator[None]:
    """Fails the test if a response violates the SDK's types or the order of stream events."""
    VIOLATIONS.clear()
    yield
    assert VIOLATIONS == []
