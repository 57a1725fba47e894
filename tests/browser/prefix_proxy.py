"""A reverse proxy that serves a server below a path, which it strips, over real sockets."""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding"}


class _Proxy(BaseHTTPRequestHandler):
    """HTTP/1.0: each answer ends with its connection."""

    prefix: ClassVar[str]
    port: ClassVar[int]

    def handle_request(self) -> None:
        rest = self.path.removeprefix(self.prefix)
        if rest == self.path or (rest and rest[0] not in "/?"):
            self.send_error(404)
            return
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name: value for name, value in self.headers.items() if keeps(name)}
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=60)) as upstream:
            path = rest if rest.startswith("/") else f"/{rest}"
            upstream.request(self.command, path, body or None, headers)
            with suppress(ConnectionError):  # the browser left the page
                self.relay(upstream.getresponse())

    def relay(self, answer: HTTPResponse) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if keeps(name):
                self.send_header(name, value)
        self.end_headers()
        while part := answer.read1():
            self.wfile.write(part)
            self.wfile.flush()

    do_GET = do_POST = do_HEAD = handle_request

    def log_message(self, *_: object) -> None:
        """Tests read the gateway's log only."""


def keeps(name: str) -> bool:
    return name.lower() not in _HOP_BY_HOP


@contextmanager
def proxied(port: int, prefix: str) -> Iterator[str]:
    """The address of the server below `prefix`, which has no slash at its end."""
    handler = type("StrippingProxy", (_Proxy,), {"prefix": prefix, "port": port})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}{prefix}"
        server.shutdown()
