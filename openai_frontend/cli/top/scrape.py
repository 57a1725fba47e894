"""Reads a gateway's metrics, models and health at one moment."""

import json
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from openai_frontend.cli.top.client import Connection, GatewayAddress, Unreachable

_METRICS, _MODELS, _HEALTH = PATHS = ("/metrics", "/v1/models", "/health/ready")

Series = Mapping[tuple[tuple[str, str], ...], float]  # labels, sorted -> value


class Refused(Unreachable):
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

    def label_values(self, name: str, label: str) -> set[str]:
        """All values of a label over the series of a metric."""
        return {dict(of)[label] for of in self.samples.get(name, {}) if label in dict(of)}


def scrape(address: GatewayAddress) -> Scrape:
    """Raises Unreachable, or Refused if the key is missing or lacks the scope `metrics`."""
    with Connection(address) as connection:
        status, text = connection.get(_METRICS)
        if status != 200:
            raise Refused(_refusal(status))
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
        raise Refused("/metrics is not in Prometheus text format: is this a gateway?") from None
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
