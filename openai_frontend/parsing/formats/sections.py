"""Calls between markers, alone or in a section, for the formats with a marker per call."""

from collections.abc import Callable, Generator
from dataclasses import dataclass

from openai_frontend.parsing.buffer import Cursor
from openai_frontend.parsing.events import EventBuffer

ReadCall = Callable[[Cursor, EventBuffer], Generator[None, None, None]]


@dataclass(frozen=True, slots=True)
class Section:
    """The markers around each call, and around all of them."""

    call_starts: tuple[str, ...]
    call_ends: tuple[str, ...]
    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()

    @property
    def all_starts(self) -> tuple[str, ...]:
        """Every marker that may come first."""
        return self.starts + self.call_starts

    @property
    def all_ends(self) -> tuple[str, ...]:
        """Every marker that may come last."""
        return self.call_ends + self.ends


def read_section(
    section: Section, read_call: ReadCall, cursor: Cursor, output: EventBuffer, start: str
) -> Generator[None, None, None]:
    """Reads one call after another, from behind `start`."""
    if start in section.starts:
        yield from cursor.skip_space()
        yield from cursor.expect(*section.call_starts)
    while True:
        yield from read_call(cursor, output)
        yield from cursor.skip_space()
        after = yield from cursor.accept(*section.call_starts, *section.ends)
        if after in section.ends:
            cursor.record()
        if after not in section.call_starts:
            return
