"""HTTP client of `top`: TCP, TLS or a Unix socket."""

import http.client
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

_TIMEOUT_S = 5.0
_MAX_BYTES = 64 * 1024 * 1024


class Unreachable(Exception):
    """The gateway did not answer. The message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayAddress:
    host: str
    port: int
    key: str | None = None
    unix_socket: Path | None = None
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        if self.unix_socket is not None:
            return str(self.unix_socket)
        return f"{'http' if self.tls is None else 'https'}://{self.host}:{self.port}"


def parse_address(
    url: str,
    *,
    key: str | None = None,
    unix_socket: Path | None = None,
    ca: Path | None = None,
    certificate: Path | None = None,
) -> GatewayAddress:
    """Accepts clients' base URLs, with or without `/v1`. Raises ValueError, OSError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"'{url}' is not an http or https URL")
    if parts.path.rstrip("/") not in ("", "/v1"):
        raise ValueError(f"'{url}' has a path other than /v1")
    tls = _tls(ca, certificate) if parts.scheme == "https" else None
    port = parts.port or (80 if tls is None else 443)
    return GatewayAddress(host=parts.hostname, port=port, key=key, unix_socket=unix_socket, tls=tls)


def _tls(ca: Path | None, certificate: Path | None) -> ssl.SSLContext:
    try:
        tls = ssl.create_default_context(cafile=ca)
    except ssl.SSLError:
        raise ValueError(f"{ca} contains no PEM certificate") from None
    if certificate is not None:
        try:
            tls.load_cert_chain(certificate, password="")  # no prompt for a passphrase
        except ssl.SSLError:
            raise ValueError(
                f"{certificate} does not contain a PEM certificate and its key"
            ) from None
    return tls


class Connection:
    """One connection for a few requests; a context manager."""

    def __init__(self, address: GatewayAddress) -> None:
        self._http = _connection(address)
        self._headers = {} if address.key is None else {"authorization": f"Bearer {address.key}"}

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
            return response.status, response.read(_MAX_BYTES)
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


def _connection(address: GatewayAddress) -> http.client.HTTPConnection:
    if address.unix_socket is not None:
        return _UnixConnection(address.unix_socket)
    if address.tls is not None:
        return http.client.HTTPSConnection(
            address.host, address.port, timeout=_TIMEOUT_S, context=address.tls
        )
    return http.client.HTTPConnection(address.host, address.port, timeout=_TIMEOUT_S)
