"""The gateway as a process, with a mock model that supports every task, and raw requests."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import mock_models
from tests.gateway_process import GatewayProcess


@contextmanager
def mock_gateway(folder: Path, *options: str) -> Iterator[GatewayProcess]:
    """Run `openai-frontend serve` with the model `mock` and wait until it is ready."""
    repository = folder / "models"
    repository.mkdir()
    classes = {"tasks": ["generate", "embed", "score", "classify"], "labels": ["no", "yes"]}
    mock_models.write_with_tokenizer(
        repository, "mock", tokens=["Hel", "lo"], answer_tokens=4, **classes
    )
    with GatewayProcess(repository, folder / "log", *options) as process:
        process.wait_until_ready()
        yield process


@dataclass(frozen=True)
class RawResponse:
    """A response as received."""

    status: int
    headers: dict[str, str]
    body: bytes

    @classmethod
    def of(cls, received: bytes) -> "RawResponse":
        """The first response on a connection. Its body includes everything that follows."""
        head, _, body = received.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        return cls(int(status.split()[1]), headers, body)

    @property
    def error(self) -> dict[str, Any]:
        envelope = json.loads(self.body)
        assert list(envelope) == ["error"]
        error: dict[str, Any] = envelope["error"]
        return error


def exchange(port: int, sent: bytes) -> RawResponse:
    """The response on a new connection, which the server must close."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(sent)
        return RawResponse.of(b"".join(iter(lambda: connection.recv(65536), b"")))


def request(line: str, *headers: str, body: bytes = b"") -> bytes:
    """A request after which the server closes the connection."""
    own = ["host: localhost", "connection: close", f"content-length: {len(body)}"]
    return "\r\n".join([f"{line} HTTP/1.1", *own, *headers, "", ""]).encode("latin-1") + body
