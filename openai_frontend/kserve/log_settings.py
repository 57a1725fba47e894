"""Triton's logging extension: reads and changes the settings of the core's log."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from openai_frontend.errors import InvalidRequest, NotSupported

logger = logging.getLogger(__name__)

LogValue = str | int | bool

_FORMATS = ("default", "ISO8601")
_MOST_VERBOSE = 2**31 - 1
_FILE = "'log_file' cannot be changed by a client. Set --triton-option log-file=PATH."


class LoggingCore(Protocol):
    """A core whose log can be changed."""

    def set_log(self, name: str, value: LogValue) -> None:
        """Raises ModelUnavailable while the core does not run."""


class LogSettings:
    """The settings of the process's only core log, by the extension's keys."""

    def __init__(self, initial: Mapping[str, LogValue], core: LoggingCore) -> None:
        self._values = dict(initial)
        self._core = core

    def get(self) -> Mapping[str, LogValue]:
        return self._values

    def update(self, settings: Mapping[str, Any]) -> None:
        """Changes all of the settings, or none if one is invalid. None leaves a key as it is."""
        changes = {name: value for name, value in settings.items() if value is not None}
        if "log_file" in changes:
            raise NotSupported(_FILE)
        for name, value in changes.items():
            _check(name, value)
        for name, value in changes.items():
            self._core.set_log(name, value)
            self._values[name] = value
        if changes:
            pairs = (f"{name}={value}" for name, value in changes.items())
            logger.info("log settings of Triton's core changed: %s", " ".join(pairs))


def _check(name: str, value: Any) -> None:
    if (check := _CHECKS.get(name)) is None:
        message = f"unknown log setting '{name[:128]}'; known: {', '.join(_CHECKS)}"
        raise InvalidRequest(message, param=name[:128])
    check(name, value)


def _boolean(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidRequest(f"'{name}' must be true or false", param=name)


def _level(name: str, value: Any) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not 0 <= value <= _MOST_VERBOSE:
        raise InvalidRequest(f"'{name}' must be an integer from 0 to {_MOST_VERBOSE}", param=name)


def _format(name: str, value: Any) -> None:
    if value not in _FORMATS:
        raise InvalidRequest(f"'{name}' must be {' or '.join(map(repr, _FORMATS))}", param=name)


_CHECKS: Mapping[str, Callable[[str, Any], None]] = {
    "log_info": _boolean,
    "log_warning": _boolean,
    "log_error": _boolean,
    "log_verbose_level": _level,
    "log_format": _format,
}
