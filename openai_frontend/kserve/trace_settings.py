"""Triton's trace extension: reads and changes which requests are traced by OpenTelemetry."""

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from openai_frontend.errors import InvalidRequest, NotSupported
from openai_frontend.kserve.models import Core, ModelAddress

logger = logging.getLogger(__name__)

_MOST = 2**32 - 1  # Triton's rates are uint32
_LONGEST = 10  # digits of _MOST; Python refuses to convert thousands

_OFF = (
    "Requests are not traced. Start the server with --otlp-endpoint http://HOST:4318, or with "
    "--trace-file PATH."
)
_ONE_MODEL = (
    "Trace settings of one model are not supported, because requests are sampled before their "
    "model is known. Change those of all models: /v2/trace/setting, or no model_name over gRPC."
)
_COLLECTOR = "Traces go to the collector at --otlp-endpoint: "
_REFUSED = {
    "trace_file": "'trace_file' is not supported. " + _COLLECTOR + "it may write them to files.",
    "log_frequency": "'log_frequency' is not supported. "
    + _COLLECTOR
    + "set OTEL_BSP_SCHEDULE_DELAY, the milliseconds between batches.",
    "trace_count": "'trace_count' is not supported. Set trace_level to OFF to end tracing.",
}


class Sampling(Protocol):
    """Decides which requests are traced."""

    enabled: bool
    ratio: float  # of requests whose caller does not decide


class TraceSettings:
    """The settings of all models, by the extension's keys."""

    def __init__(self, sampling: Sampling | None) -> None:
        """`sampling` is None if requests are not traced."""
        self._sampling = sampling
        self._initial = None if sampling is None else (sampling.enabled, sampling.ratio)

    def of_model(self, core: Core, model: ModelAddress) -> "TraceSettings":
        """Raises ModelNotFound, ModelUnavailable if the model is not ready."""
        core.model_metadata(model.name)
        return _ModelTraceSettings(self._sampling)

    def get(self) -> Mapping[str, str | list[str]]:
        sampling = self._sampling
        is_on = sampling is not None and sampling.enabled
        ratio = 0.0 if sampling is None else sampling.ratio
        return {
            "trace_level": ["TIMESTAMPS" if is_on else "OFF"],
            "trace_rate": str(round(1 / ratio)) if ratio else "0",
            "trace_count": "-1",
            "trace_mode": "opentelemetry",
        }

    def update(self, settings: Mapping[str, Any]) -> None:
        """Changes all of the settings, or none if one is invalid. None restores the initial one."""
        if not settings:
            return
        for name in settings:
            _check_name(name)
        if self._sampling is None or self._initial is None:
            raise NotSupported(_OFF)
        enabled, ratio = self._sampling.enabled, self._sampling.ratio
        if "trace_level" in settings:
            level = settings["trace_level"]
            enabled = self._initial[0] if level is None else trace_level(level)
        if "trace_rate" in settings:
            rate = settings["trace_rate"]
            ratio = self._initial[1] if rate is None else _ratio(rate)
        self._sampling.enabled, self._sampling.ratio = enabled, ratio
        logger.info("trace settings changed: enabled=%s ratio=%g", enabled, ratio)


class _ModelTraceSettings(TraceSettings):
    """The settings of one model, which are those of all models and cannot be changed alone."""

    def update(self, settings: Mapping[str, Any]) -> None:
        if settings:
            raise NotSupported(_ONE_MODEL)


def _check_name(name: str) -> None:
    if name in _REFUSED:
        raise NotSupported(_REFUSED[name])
    if name not in ("trace_level", "trace_rate"):
        message = f"unknown trace setting '{name[:128]}'; known: trace_level, trace_rate"
        raise InvalidRequest(message, param=name[:128])


def trace_level(level: Any) -> bool:
    """Whether requests are traced. Raises InvalidRequest."""
    levels = [level] if isinstance(level, str) else level
    if levels not in (["OFF"], ["TIMESTAMPS"]):
        message = "'trace_level' must be ['OFF'] or ['TIMESTAMPS']; tensors are never traced"
        raise InvalidRequest(message, param="trace_level")
    return bool(levels == ["TIMESTAMPS"])


def _ratio(rate: Any) -> float:
    """The share of requests for a rate of one in N."""
    every = whole_number("trace_rate", rate, 0, _MOST)
    return 1 / every if every else 0.0


def whole_number(name: str, value: Any, least: int, most: int) -> int:
    """The number of a string; gRPC's lists have one member. Raises InvalidRequest."""
    text = value[0] if isinstance(value, list) and len(value) == 1 else value
    is_number = isinstance(text, str) and text.isascii() and text.removeprefix("-").isdecimal()
    if not is_number or len(text) > _LONGEST or not least <= int(text) <= most:
        message = f"'{name}' must be a string of an integer from {least} to {most}"
        raise InvalidRequest(message, param=name)
    return int(text)
