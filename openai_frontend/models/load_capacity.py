"""The limits on loaded models and their memory: which models fit beside each other."""

from collections.abc import Collection

from openai_frontend.errors import ModelUnavailable
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.models.sleep import ModelSleep


class LoadCapacity:
    """A model's size is its `memory_bytes` option, or else the largest growth of memory measured at
    its loads. Limits of None do not apply.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        *,
        max_models: int | None,
        max_bytes: int | None,
        sleep: ModelSleep | None,
    ) -> None:
        self._registry = registry
        self._max_models, self._max_bytes = max_models, max_bytes
        self._sleep = sleep
        self._measured_bytes: dict[str, int] = {}

    def must_measure(self, name: str) -> bool:
        """Whether only a load tells the model's size, and a limit needs it."""
        has_budget = self._max_bytes is not None
        return has_budget and self._registry.options(name).memory_bytes is None

    def add_measurement(self, name: str, added_bytes: int, *, exact: bool) -> None:
        """Add what memory grew by at a load. One that is not exact counts only as the first."""
        if exact or name not in self._measured_bytes:
            self._measured_bytes[name] = max(added_bytes, self._measured_bytes.get(name, 0))

    def size_bytes(self, name: str) -> int:
        """The model's size; 0 if it has no option and was never loaded on demand."""
        declared = self._registry.options(name).memory_bytes
        return self._measured_bytes.get(name, 0) if declared is None else declared

    def missing_bytes(self, name: str) -> int:
        """For its load; for a wake at most its size, of which sleep may have freed more."""
        size = self.size_bytes(name)
        return size - self._used_bytes(name) if self._registry.is_loaded(name) else size

    def check_fits(self, name: str) -> None:
        """Raise ModelUnavailable if the model never fits, even alone."""
        needed = self.missing_bytes(name)
        if self._max_bytes is not None and needed > self._max_bytes:
            message = f"The model '{name}' needs {needed} bytes; all models may use "
            raise ModelUnavailable(f"{message}{self._max_bytes}.")

    def check_fit_together(self, names: Collection[str]) -> None:
        """Raise ModelUnavailable if the models never fit beside each other: a request that has one
        would wait for room that only its end makes.
        """
        counted = [name for name in names if self._registry.loads_on_demand(name)]
        needed = sum(map(self.size_bytes, names))
        if self._max_bytes is not None and needed > self._max_bytes:
            limit = f"need {needed} bytes together; all models may use {self._max_bytes}"
        elif self._max_models is not None and len(counted) > self._max_models:
            limit = (
                f"cannot be loaded together: the limit is {self._max_models} (max_loaded_models)"
            )
        else:
            return
        shown = " and ".join(f"'{name}'" for name in sorted(names))
        raise ModelUnavailable(f"The models {shown} {limit}.")

    def surely_fit_together(self, names: frozenset[str]) -> bool:
        """Whether the models fit beside each other, whatever a load shows."""
        if self._max_models is not None and len(names) > self._max_models:
            return False
        if self._max_bytes is None:
            return True
        sizes = [self.size_bytes(name) for name in names]
        return all(sizes) and sum(sizes) <= self._max_bytes  # a load shows an unknown size

    def is_full(
        self, loaded: frozenset[str], needed_bytes: int, name: str, models: int = 0
    ) -> bool:
        """Whether `needed_bytes` do not fit beside the loaded models, or `too_many` are loaded."""
        if self.too_many(loaded, name, models):
            return True
        if self._max_bytes is None:
            return False
        used_bytes = sum(self._used_bytes(each) for each in loaded)
        return used_bytes + needed_bytes > self._max_bytes

    def too_many(self, loaded: frozenset[str], name: str, models: int = 0) -> bool:
        """Whether the model is one too many, with `models` that will be loaded before it."""
        if self._max_models is None or name in loaded:  # a wake adds none
            return False
        others = [each for each in loaded if each != name and self._registry.loads_on_demand(each)]
        return len(others) + models >= self._max_models

    def _used_bytes(self, name: str) -> int:
        """Without what the model's sleep has freed."""
        freed = 0 if self._sleep is None else self._sleep.freed_bytes(name)
        return max(0, self.size_bytes(name) - freed)
