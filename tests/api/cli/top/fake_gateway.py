"""A server with programmable answers for the three paths that `top` scrapes."""

import json
import socketserver
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

METRICS = """\
# TYPE openai_frontend_requests_running gauge
openai_frontend_requests_running{model="demo"} 3
# TYPE openai_frontend_output_tokens_total counter
openai_frontend_output_tokens_total{model="demo"} 100
"""
ANSWERS: Mapping[str, tuple[int, str]] = {
    "/metrics": (200, METRICS),
    "/v1/models": (200, json.dumps({"data": [{"id": "demo"}, {"id": "tired"}]})),
    "/health/ready": (
        503,
        json.dumps({"status": "not ready", "models": {"tired": "still loading"}}),
    ),
}


class _TCP(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


class _Unix(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


@contextmanager
def fake_gateway(
    answers: Mapping[str, tuple[int, str]] = ANSWERS,
    *,
    port: int = 0,
    unix_socket: Path | None = None,
    certificate: Path | None = None,
    client_ca: Path | None = None,
    key: str | None = None,
) -> Iterator[int]:
    """Yields the port. With a key, requests without it get 401."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, body = answers[self.path]
            if key is not None and self.headers.get("authorization") != f"Bearer {key}":
                status, body = 401, "{}"
            self.send_response(status)
            sent = body.encode(errors="surrogateescape")
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *args: Any) -> None:
            """Logs nothing."""

        def address_string(self) -> str:
            """A Unix socket's client has no address."""
            return "client"

    server: socketserver.BaseServer
    if unix_socket is not None:
        server, listening = _Unix(str(unix_socket), Handler), 0
    else:
        tcp = _TCP(("127.0.0.1", port), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            if client_ca is not None:
                context.load_verify_locations(client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
            tcp.socket = context.wrap_socket(tcp.socket, server_side=True)
        server, listening = tcp, tcp.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield listening
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
