"""What a gateway said of itself at one moment. Compares nothing."""

import json
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from openai_frontend.cli.top.source import Connection, Place, Unreachable

_METRICS, _MODELS, _HEALTH = ADDRESSES = ("/metrics", "/v1/models", "/health/ready")

Series = Mapping[tuple[tuple[str, str], ...], float]  # labels, sorted -> value


class Refused(Unreachable):
    """The gateway does not tell this to who asks; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One look."""

    at_s: float  # on a clock that only goes forward
    samples: Mapping[str, Series]
    models: tuple[str, ...] = ()  # in Triton; none where the key may not list models
    status: str = ""  # as /health/ready says it; empty where the key is not for that
    unready: Mapping[str, str] = field(default_factory=dict)  # model -> why it cannot serve

    def value(self, name: str, **labels: str) -> float | None:
        """The sum over all series with these labels; None where there is none."""
        wanted = set(labels.items())
        found = [value for of, value in self.samples.get(name, {}).items() if wanted <= set(of)]
        return sum(found) if found else None

    def label_values(self, name: str, label: str) -> set[str]:
        """What stands in a label, over all series of a name."""
        return {dict(of)[label] for of in self.samples.get(name, {}) if label in dict(of)}


def read(place: Place) -> Reading:
    """Asks. Raises Unreachable, and Refused where a key is missing or not for metrics."""
    with Connection(place) as connection:
        status, text = connection.get(_METRICS)
        if status != 200:
            raise Refused(_refusal(status))
        samples = _samples(text)
        models = _models(*connection.get(_MODELS))
        health = _json(connection.get(_HEALTH)[1])
    return Reading(
        at_s=time.monotonic(),
        samples=samples,
        models=models,
        status=_text(health.get("status", "")),
        unready={_text(name): _text(why) for name, why in health.get("models", {}).items()},
    )


def _refusal(status: int) -> str:
    if status in (401, 403):
        return (
            f"/metrics answers {status}: it wants a key with the scope `metrics`, from "
            "OPENAI_API_KEY or --key-file"
        )
    return f"/metrics answers {status}"


def _samples(text: bytes) -> dict[str, Series]:
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = defaultdict(dict)
    try:
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                labels = tuple(sorted((name, _text(at)) for name, at in sample.labels.items()))
                samples[sample.name][labels] = sample.value
    except ValueError:
        raise Refused("/metrics is no text of Prometheus': is this a gateway?") from None
    return dict(samples)


def _models(status: int, body: bytes) -> tuple[str, ...]:
    """The models behind all names that are listed, as metrics name them."""
    listed = _json(body).get("data", []) if status == 200 else []
    names = (each.get("parent") or each.get("root") or each["id"] for each in listed)
    return tuple(dict.fromkeys(map(_text, names)))


def _json(body: bytes) -> dict[str, Any]:
    try:
        told = json.loads(body)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _text(told: object) -> str:
    """A terminal does what control characters say, and these come from elsewhere."""
    return "".join(each if each.isprintable() else "?" for each in str(told))
