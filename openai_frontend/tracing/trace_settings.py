"""Which inference requests are traced to a file: the settings of all models, and of single ones.

The rules are those of tritonserver's trace extension.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openai_frontend.config.trace_options import FileTraces

# Setting -> its value; None: no longer set, so the value of all models applies, or of the start
Changes = Mapping[str, Any]
NAMES = ("level", "rate", "count", "log_frequency")


@dataclass(slots=True, eq=False)
class TraceSetting:
    """Settings in force. A change replaces the object: traces keep the one that sampled them."""

    level: int  # bits of trace_options; 0: no request is traced
    rate: int
    count: int  # that remain; -1: any number
    log_frequency: int
    specified: frozenset[str] = frozenset()  # not taken from the settings of all models
    requests: int = 0
    sampled: int = 0
    limited: bool = False  # the number of traces has a limit
    replaced: bool = False  # others are in force

    def __post_init__(self) -> None:
        self.limited = self.count >= 0

    def sample(self) -> bool:
        """Count a request; whether it is traced."""
        if not self.level or not self.count or not self.rate:
            return False
        self.requests += 1
        if self.requests % self.rate:
            return False
        if self.count > 0:
            self.count -= 1
        self.sampled += 1
        return True

    @property
    def exhausted(self) -> bool:
        """Whether the last trace has been sampled."""
        return self.count == 0 or self.replaced


class TraceSettingsByModel:
    """Models without settings of their own share those of all models, and its counts."""

    def __init__(self, start: FileTraces) -> None:
        self._has_file = start.file is not None
        level = start.level if self._has_file else 0
        self._start = TraceSetting(level, start.rate, start.count, start.log_frequency)
        self._all = TraceSetting(level, start.rate, start.count, start.log_frequency)
        self._models: dict[str, TraceSetting] = {}

    def of(self, model: str) -> TraceSetting:
        return self._models.get(model, self._all)

    @property
    def all(self) -> TraceSetting:
        return self._all

    @property
    def enabled(self) -> bool:
        """Whether any model's requests may be traced."""
        return bool(self._all.level) or any(each.level for each in self._models.values())

    def update(self, model: str | None, changes: Changes) -> None:
        """Change those of a model, or of all (None). Raises ValueError; nothing changes then."""
        if model is not None:
            self._set_model(model, _changed(self._models.get(model), self._all, changes))
            return
        changed = _changed(self._all, self._start, changes)
        self._check(changed)
        models = {
            name: _changed(each, changed, {})
            for name, each in self._models.items()
            if len(each.specified) < len(NAMES)
        }
        for each in models.values():
            self._check(each)
        for old in (self._all, *(self._models[name] for name in models)):
            old.replaced = True
        self._all = changed
        self._models |= models

    def _set_model(self, model: str, setting: TraceSetting) -> None:
        self._check(setting)
        if (old := self._models.get(model)) is not None:
            old.replaced = True
        if setting.specified:
            self._models[model] = setting
        else:
            self._models.pop(model, None)

    def _check(self, setting: TraceSetting) -> None:
        if setting.level and not setting.rate:
            raise ValueError("sample rate must be non-zero")
        if setting.level and not self._has_file:
            raise ValueError("trace file name is not given")


def _changed(current: TraceSetting | None, others: TraceSetting, changes: Changes) -> TraceSetting:
    """`others` has the values of what neither is nor was specified."""
    specified = frozenset() if current is None else current.specified
    kept = specified - {name for name, value in changes.items() if value is None}
    given = {name: value for name, value in changes.items() if value is not None}
    values = {
        name: given.get(name, getattr(current if name in kept else others, name)) for name in NAMES
    }
    return TraceSetting(**values, specified=kept | given.keys())
