"""Limits of one rendering of a chat template: CPU time, memory, and the size of each value.

A call in C cannot be interrupted, and it holds the interpreter. So each method and filter that can
create a large value, or take long, is checked before it runs (template_calls.py). What they create
is counted here.
"""

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NoReturn, TypeVar

from jinja2 import Environment, Template, TemplateError

MAX_CHARACTERS = 8 * 1024 * 1024  # limit of the prompt and of any intermediate value
MAX_ITEMS = 256 * 1024  # limit of a list that the template creates
MAX_CPU_S = 1.0
MAX_BITS = 4096  # limit of integers

# Values in use, those created since the last look at them, and the next one: 64 MiB in all
MAX_VALUE_BYTES = 16 << 20
_MAX_LIVE_BYTES = 24 << 20
_BYTES_PER_CHECK = 24 << 20

_STEPS_PER_CHECK = 512  # of the clock, which takes 0.3 to 2 us
_STEPS_BEFORE_CLOCK = 16  # a short chat has fewer, and each takes milliseconds at most
_MANY_ITEMS = 4096
SMALL = 4096  # characters
_STEP_BYTES = 1 << 20  # work on that much counts as all steps up to the next check

CONTAINERS = (list, tuple, dict, set, frozenset)

_T = TypeVar("_T")


class TemplateLimit(TemplateError):
    """The template exceeded a limit."""


class Budget:
    """The time and memory that one rendering may still use. Its time is that of the thread,
    whatever else runs.
    """

    def __init__(self, variables: object = None) -> None:
        self._variables = variables  # their memory is not the template's
        self._ends: float | None = None  # None: the clock has not started
        self._steps, self._next_check = 0, _STEPS_BEFORE_CLOCK
        self._created_bytes = 0
        # id -> a list that the template created, and its size (see `size_of`)
        self._lists: dict[int, tuple[Any, int]] = {}

    def step(self, count: int = 1) -> None:
        """Count a call, or rounds of a loop: several at once only if they are few. Raises
        TemplateLimit.
        """
        self._steps += count
        if self._steps >= self._next_check:
            self._next_check = self._steps + _STEPS_PER_CHECK
            self._check_time()

    def work(self, size: int) -> None:
        """Count work on a value of this many characters or items."""
        if size >= _STEP_BYTES:
            self._check_time()

    def create(self, size_bytes: int) -> None:
        """Count memory of a new value."""
        self._created_bytes += size_bytes
        if self._created_bytes > _BYTES_PER_CHECK:
            self._check_time()
            if live_bytes(self._variables) > _MAX_LIVE_BYTES:
                raise TemplateLimit(f"its values take more than {_MAX_LIVE_BYTES >> 20} MiB")
            self._created_bytes = 0

    def size_of_list(self, value: Any, *, replaced: bool = False) -> int:
        """`size_of` a list or tuple. `replaced`: it is probably not used again."""
        known = self._lists.pop(id(value), None) if replaced else self._lists.get(id(value))
        return size_of(value) if known is None else known[1]

    def add_list(self, value: Any, size: int) -> None:
        self._lists[id(value)] = value, size

    def _check_time(self) -> None:
        now_s = time.thread_time()
        if self._ends is None:
            self._ends = now_s + MAX_CPU_S
        elif now_s > self._ends:
            raise TemplateLimit(f"rendering took longer than {MAX_CPU_S:g} s")


class _Running(threading.local):
    """The rendering of this thread."""

    budget: Budget | None = None


running = _Running()


def step() -> None:
    if (budget := running.budget) is not None:
        budget.step()


def work(size: int) -> None:
    """Count work on a value of this many characters or items."""
    if (budget := running.budget) is not None:
        budget.work(size)


def created(value: Any) -> Any:
    """Returns a new value after counting it. Raises TemplateLimit if it is too large.

    Small texts do not count: lists, outputs, and the bodies of macros limit how many there are.
    """
    if type(value) is str and len(value) <= SMALL:
        return value
    if isinstance(value, str):
        require_characters(len(value))
        count_bytes(value)
    elif isinstance(value, CONTAINERS):
        require_items(len(value))
        size_of(value)
        count_bytes(value)
    elif isinstance(value, int) and value.bit_length() > MAX_BITS:
        refuse_number()
    return value


def count_bytes(value: Any) -> None:
    """Count the memory of a new value."""
    size_bytes = sys.getsizeof(value)
    if size_bytes > MAX_VALUE_BYTES:
        raise TemplateLimit(f"a value takes more than {MAX_VALUE_BYTES >> 20} MiB")
    if (budget := running.budget) is not None:
        budget.create(size_bytes)


def require_characters(count: int) -> None:
    if count > MAX_CHARACTERS:
        raise TemplateLimit(f"a value is longer than {MAX_CHARACTERS} characters")


def refuse_number() -> NoReturn:
    raise TemplateLimit(f"a number is larger than {MAX_BITS} bits")


def require_items(count: int) -> None:
    if count > MAX_ITEMS:
        raise TemplateLimit(f"a list is longer than {MAX_ITEMS} items")


def size_of(value: Any, limit: int = MAX_CHARACTERS) -> int:
    """Characters and items of a value as if it were printed: what appears twice counts twice.

    A list that contains another twice, 40 times nested, is small in memory, but printing it,
    comparing it or hashing it takes hours. Raises TemplateLimit beyond `limit` characters.
    """
    if isinstance(value, str):
        size = len(value)
    elif isinstance(value, CONTAINERS):
        size = _size_of_items(value, limit)
    else:
        return 1
    if size > limit:
        raise TemplateLimit(f"a value is longer than {limit} characters")
    return size


def _size_of_items(value: Any, limit: int) -> int:
    size, items, waiting = 0, 0, [value]
    while waiting and size <= limit:
        each = waiting.pop()
        if isinstance(each, str):
            size += len(each)
        elif isinstance(each, CONTAINERS):
            items += len(each)
            require_items(items)  # takes 0.1 s for as many
            waiting.extend(each.values() if isinstance(each, dict) else each)
            if isinstance(each, dict):
                waiting.extend(each)
        size += 1
    if items > _MANY_ITEMS:
        work(_STEP_BYTES)
    return size


def bounded(items: Iterable[Any]) -> Iterator[Any]:
    """Yields the items, and refuses too many, too large ones, and too much time."""
    size = 0
    for count, item in enumerate(items):
        step()
        require_items(count)
        if isinstance(item, str | list | tuple | dict):
            size += size_of(item)
            require_characters(size)
        yield item


# They are not values of the template, and everything can be reached from them.
_OPAQUE = (
    Environment,
    Template,
    type,
    ModuleType,
    FunctionType,
    CodeType,
    FrameType,
    Budget,
)


def render_within(budget: Budget, render: Callable[[], _T]) -> _T:
    """Run `render`, whose work counts towards the budget."""
    running.budget = budget
    try:
        return render()
    finally:
        running.budget = None


def live_bytes(variables: object) -> int:
    """Memory of the values that this thread's rendering can still reach, besides its variables.

    Takes about a microsecond per value: for use after much was created.
    """
    seen: set[int] = set()
    _measure([variables], seen)
    locals_: list[Any] = []
    frame: FrameType | None = sys._getframe(1)  # the only way to the variables of its callers
    while frame is not None and frame.f_code is not render_within.__code__:
        locals_.extend(frame.f_locals.values())
        frame = frame.f_back
    return _measure(locals_, seen)


def _measure(waiting: list[Any], seen: set[int]) -> int:
    """Bytes of everything that can be reached; adds its ids to `seen`."""
    size_bytes = 0
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType):  # a macro, with what it uses of its surroundings
            waiting.extend(value.__closure__ or ())
        elif not isinstance(value, _OPAQUE):
            size_bytes += sys.getsizeof(value)
            waiting.extend(gc.get_referents(value))
    return size_bytes
