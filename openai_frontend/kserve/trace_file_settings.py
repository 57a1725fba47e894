"""Triton's trace extension for traces in files: settings of all models and of single ones."""

import logging
from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Any

from openai_frontend.config.trace_options import TENSORS, TIMESTAMPS
from openai_frontend.errors import InvalidRequest, NotSupported
from openai_frontend.kserve.models import Core, ModelAddress
from openai_frontend.kserve.trace_settings import whole_number
from openai_frontend.tracing.file_tracing import FileTracing

logger = logging.getLogger(__name__)

_FILE = "trace file location can not be updated through network protocol"  # Triton's words
_MOST_TRACES = 2**31 - 1
_LEVELS = {"TIMESTAMPS": TIMESTAMPS, "TENSORS": TENSORS}
_NAMES = ("trace_level", "trace_rate", "trace_count", "log_frequency")


class TraceFileSettings:
    """Settings by the extension's keys, of one model or all."""

    def __init__(self, tracing: FileTracing, model: str | None = None) -> None:
        self._tracing = tracing
        self._model = model

    def of_model(self, core: Core, model: ModelAddress) -> "TraceFileSettings":
        """Raises ModelNotFound, ModelUnavailable if the model is not ready."""
        core.model_metadata(model.name)
        return TraceFileSettings(self._tracing, model.name)

    def get(self) -> Mapping[str, str | list[str]]:
        setting = self._tracing.setting(self._model)
        return {
            "trace_level": [name for name, bit in _LEVELS.items() if setting.level & bit]
            or ["OFF"],
            "trace_rate": str(setting.rate),
            "trace_count": str(setting.count),
            "log_frequency": str(setting.log_frequency),
            "trace_file": self._tracing.file,
            "trace_mode": "triton",
        }

    def update(self, settings: Mapping[str, Any]) -> None:
        """Changes all of the settings, or none if one is invalid. None removes one: that of all
        models applies then, or that of the start.
        """
        if not settings:
            return
        changes = dict(_change(name, value) for name, value in settings.items())
        try:
            self._tracing.update(self._model, changes)
        except ValueError as error:
            raise InvalidRequest(f"Attempting to set invalid trace setting: {error}") from None
        logger.info("trace settings changed: model=%s %s", self._model or "*", changes)


def _change(name: str, value: Any) -> tuple[str, Any]:
    if name == "trace_file":
        raise NotSupported(_FILE)
    if name not in _NAMES:
        message = f"unknown trace setting '{name[:128]}'; known: {', '.join(_NAMES)}"
        raise InvalidRequest(message, param=name[:128])
    if name == "trace_level":
        return "level", None if value is None else _level(value)
    if value is None:
        return name.removeprefix("trace_"), None
    least, most = (-1, _MOST_TRACES) if name == "trace_count" else (0, 2**32 - 1)
    return name.removeprefix("trace_"), whole_number(name, value, least, most)


def _level(value: Any) -> int:
    """Bits."""
    levels = [value] if isinstance(value, str) else value
    if levels == ["OFF"]:
        return 0
    if not isinstance(levels, list) or not levels or any(each not in [*_LEVELS] for each in levels):
        message = "'trace_level' must be ['OFF'], or a list of TIMESTAMPS and TENSORS"
        raise InvalidRequest(message, param="trace_level")
    return reduce(or_, (_LEVELS[each] for each in levels))
