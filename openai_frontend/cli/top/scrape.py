"""Reads a gateway's metrics, models and health at one moment, over TCP, TLS or a Unix socket."""

import http.client
import json
import socket
import ssl
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

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


_METRICS, _MODELS, _HEALTH = PATHS = ("/metrics", "/v1/models", "/health/ready")

Series = Mapping[tuple[tuple[str, str], ...], float]  # labels, sorted -> value


class ScrapeRefused(Unreachable):
    """The gateway answered without metrics. The message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    at_s: float  # monotonic clock
    samples: Mapping[str, Series]
    models: tuple[str, ...] = ()  # names in Triton; empty if the key may not list models
    status: str = ""  # of /health/ready; empty if the key may not read it
    unready: Mapping[str, str] = field(default_factory=dict)  # model -> reason

    def value(self, name: str, **labels: str) -> float | None:
        """The sum over all series with these labels; None if there are none."""
        matching = [
            value
            for series_labels, value in self.samples.get(name, {}).items()
            if labels.items() <= dict(series_labels).items()
        ]
        return sum(matching) if matching else None

    def mean(self, name: str, **labels: str) -> float | None:
        """The mean over all series with these labels; None if there are none."""
        total = self.value(name, **labels)
        required = labels.items()
        count = sum(required <= dict(of).items() for of in self.samples.get(name, {}))
        return None if total is None else total / count

    def label_values(self, name: str, label: str) -> set[str]:
        """All values of a label over the series of a metric."""
        return {dict(of)[label] for of in self.samples.get(name, {}) if label in dict(of)}


def merged(scrapes: Mapping[str, Scrape]) -> Scrape:
    """One scrape of several gateways, by name. Each series gets a label with its gateway's name."""
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = defaultdict(dict)
    for gateway, each in scrapes.items():
        for name, series in each.samples.items():
            for labels, value in series.items():
                samples[name][tuple(sorted((*labels, ("gateway", gateway))))] = value
    statuses = Counter(each.status for each in scrapes.values())
    shown = [
        status if len(statuses) == 1 else f"{count} {status}" for status, count in statuses.items()
    ]
    return Scrape(
        at_s=max(each.at_s for each in scrapes.values()),
        samples=dict(samples),
        models=tuple(dict.fromkeys(name for each in scrapes.values() for name in each.models)),
        status=", ".join(shown),
        unready={
            name: f"{gateway}: {reason}"
            for gateway, each in scrapes.items()
            for name, reason in each.unready.items()
        },
    )


def scrape(address: GatewayAddress) -> Scrape:
    """Raises Unreachable, or ScrapeRefused if the key is missing or lacks the scope `metrics`."""
    with Connection(address) as connection:
        status, text = connection.get(_METRICS)
        if status != 200:
            raise ScrapeRefused(_refusal(status))
        samples = _samples(text)
        models = _models(*connection.get(_MODELS))
        health = _json(connection.get(_HEALTH)[1])
    return Scrape(
        at_s=time.monotonic(),
        samples=samples,
        models=models,
        status=_text(health.get("status", "")),
        unready={_text(name): _text(why) for name, why in health.get("models", {}).items()},
    )


def _refusal(status: int) -> str:
    if status in (401, 403):
        return (
            f"/metrics answered {status}: it needs a key with the scope `metrics`; set "
            "OPENAI_API_KEY or --key-file"
        )
    return f"/metrics answered {status}"


def _samples(text: bytes) -> dict[str, Series]:
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = defaultdict(dict)
    try:
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                labels = tuple(sorted((name, _text(at)) for name, at in sample.labels.items()))
                samples[sample.name][labels] = sample.value
    except ValueError:
        raise ScrapeRefused(
            "/metrics is not in Prometheus text format: is this a gateway?"
        ) from None
    return dict(samples)


def _models(status: int, body: bytes) -> tuple[str, ...]:
    """Names in Triton of all listed models, as metrics use them."""
    listed = _json(body).get("data", []) if status == 200 else []
    names = (each.get("parent") or each.get("root") or each["id"] for each in listed)
    return tuple(dict.fromkeys(map(_text, names)))


def _json(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    """Replaces control characters: the text comes from outside and goes to a terminal."""
    return "".join(each if each.isprintable() else "?" for each in str(value))
