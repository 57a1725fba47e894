"""The constraints to try after an engine has refused a request's own, each looser than before.

A function or a response format that is not strict is constrained as far as its model's engine can.
"""

import re
from collections.abc import Callable, Mapping
from threading import Lock

from openai_frontend.generation import StructuredOutputs
from openai_frontend.serving.constraints.schema_reduction import REDUCTIONS, structure
from openai_frontend.serving.request.sampling import Constraint

# Refusals that name their schema, one after the other. After them all schemas are reduced.
_MAX_NAMED = 8
_LAST = len(REDUCTIONS) - 1
_FOR_ANY_ENGINE = REDUCTIONS.index(structure)
_SCHEMA = re.compile(r"(tools|functions)\[\d+\]\.|response_format\.json_schema")


class ReducedConstraints:
    """Shared by the requests with one constraint, so that only the first of them is refused."""

    def __init__(
        self, steps: Mapping[str, int], build: Callable[[Mapping[str, int]], Constraint]
    ) -> None:
        """`steps`: the request fields with the schemas that may be reduced, and the step of
        `REDUCTIONS` of the constraint that was refused. `build` returns the constraint for others.
        """
        self._steps = dict(steps)
        self._build = build
        self._left = _MAX_NAMED
        self._lock = Lock()
        self._current: Constraint | None = None

    @property
    def current(self) -> tuple[StructuredOutputs, Mapping[str, str]] | None:
        """The constraint to use with its names; None: the request's own."""
        constraint = self._current
        if constraint is None or constraint.structured is None:
            return None
        return constraint.structured, constraint.field_names

    def after(self, refused: StructuredOutputs | None, param: str | None) -> bool:
        """Reduce the schema at `param`, or all of them. False if that is impossible.

        Another request may have reduced them already, if `refused` is not the current constraint.
        """
        with self._lock:
            if self._current is not None and self._current.structured is not refused:
                return True
            if not self._reduce(param):
                return False
            self._current = self._build(self._steps)
            return True

    def for_any_engine(self) -> "ReducedConstraints | None":
        """A copy, with schemas that every engine can enforce, and no effect on other requests. None
        if this one has no tighter schemas.
        """
        with self._lock:
            steps = {place: max(step, _FOR_ANY_ENGINE) for place, step in self._steps.items()}
            if steps == self._steps:
                return None
            other = ReducedConstraints(steps, self._build)
            other._left = self._left
        other._current = other._build(steps)
        return other

    def _reduce(self, param: str | None) -> bool:
        named = [place for place in self._steps if param is not None and _within(param, place)]
        if not named and param is not None and _SCHEMA.match(param):
            return False  # a strict one: the reduction of others cannot help
        self._left -= 1
        chosen = named if named and self._left >= 0 else list(self._steps)
        possible = [place for place in chosen if self._steps[place] < _LAST]
        for place in possible:
            self._steps[place] += 1
        return bool(possible)


def _within(param: str, place: str) -> bool:
    return param == place or param.startswith((f"{place}.", f"{place}["))
