"""Where `top` asks: a gateway, over TCP, TLS or a Unix socket. Understands no answer."""

import http.client
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

_TIMEOUT_S = 5.0
_MOST_BYTES = 64 * 1024 * 1024


class Unreachable(Exception):
    """There is no answer; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the gateway is, and how it is spoken to."""

    host: str
    port: int
    key: str | None = None
    unix_socket: Path | None = None
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        if self.unix_socket is not None:
            return str(self.unix_socket)
        return f"{'http' if self.tls is None else 'https'}://{self.host}:{self.port}"


def place(
    url: str,
    *,
    key: str | None = None,
    unix_socket: Path | None = None,
    ca: Path | None = None,
    certificate: Path | None = None,
) -> Place:
    """Of a URL as clients have it, with `/v1` or without. Raises ValueError, OSError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"'{url}' is no http or https URL")
    if parts.path.rstrip("/") not in ("", "/v1"):
        raise ValueError(f"'{url}' has a path")
    tls = _tls(ca, certificate) if parts.scheme == "https" else None
    port = parts.port or (80 if tls is None else 443)
    return Place(host=parts.hostname, port=port, key=key, unix_socket=unix_socket, tls=tls)


def _tls(ca: Path | None, certificate: Path | None) -> ssl.SSLContext:
    try:
        tls = ssl.create_default_context(cafile=ca)
    except ssl.SSLError:
        raise ValueError(f"{ca} holds no certificate, as PEM") from None
    if certificate is not None:
        try:
            tls.load_cert_chain(certificate, password="")  # never asks for one
        except ssl.SSLError:
            raise ValueError(f"{certificate} holds no certificate with its key, as PEM") from None
    return tls


class Connection:
    """One connection, for a few requests; to be used with `with`."""

    def __init__(self, place: Place) -> None:
        self._http = _connection(place)
        self._headers = {} if place.key is None else {"authorization": f"Bearer {place.key}"}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body. Raises Unreachable."""
        try:
            self._http.request("GET", path, headers=self._headers)
            response = self._http.getresponse()
            return response.status, response.read(_MOST_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(getattr(error, "strerror", None) or str(error)) from error


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(str(self._path))


def _connection(place: Place) -> http.client.HTTPConnection:
    if place.unix_socket is not None:
        return _UnixConnection(place.unix_socket)
    if place.tls is not None:
        return http.client.HTTPSConnection(
            place.host, place.port, timeout=_TIMEOUT_S, context=place.tls
        )
    return http.client.HTTPConnection(place.host, place.port, timeout=_TIMEOUT_S)
