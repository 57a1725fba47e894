"""Buffers output text that no parser has consumed yet, and finds markers in it."""

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import lru_cache


class Markers:
    """A set of literals. Its regex is an alternation of plain texts, which cannot backtrack."""

    def __init__(self, *literals: str) -> None:
        longest_first = sorted(set(literals), key=len, reverse=True)
        self.literals = tuple(longest_first)
        self.longest = len(longest_first[0]) if literals else 0
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._beginnings = frozenset(m[:i] for m in longest_first for i in range(1, len(m)))
        self._first_characters = frozenset(m[0] for m in longest_first)
        first = "|".join(map(re.escape, sorted(self._first_characters)))
        self._possible = re.compile(first or "(?!)")

    def find(self, text: str, start: int, ended: bool, limit: int | None = None) -> tuple[int, str]:
        """Return the position and text of the first marker.

        Without one, return "" and the position up to which the text cannot be part of a marker.
        `limit` is how far from `start` to search.
        """
        if limit is None and not self._possible.search(text, start):
            return len(text), ""  # the usual case, so it is checked first: 0.2 us instead of 0.9
        stop = len(text) if limit is None else min(len(text), start + limit)
        found = self._pattern.search(text, start, stop)
        if ended or stop < len(text):
            return (found.start(), found.group()) if found else (stop, "")
        unsure = self._beginning_at_end(text, start)
        if found and found.start() < unsure:
            return found.start(), found.group()
        return unsure, ""

    def _beginning_at_end(self, text: str, start: int) -> int:
        for at in range(max(start, len(text) - self.longest + 1), len(text)):
            if text[at] in self._first_characters and text[at:] in self._beginnings:
                return at
        return len(text)


@lru_cache(maxsize=256)
def markers(*literals: str) -> Markers:
    """Cached `Markers`, created once for the literals of each family."""
    return Markers(*literals)


@dataclass(frozen=True, slots=True)
class ValueEnds:
    """Texts that end the value of an argument. A text may contain its own end, so a follower must
    come.

    The call's end closes it too, because models leave the value's end out or write it wrong: after
    a text that contained its own end, or if only another call or nothing follows the call.
    """

    of_value: Markers
    after_value: Markers
    of_either: Markers  # ends of the value, and of its call
    after_call: Markers
    starts: Markers  # of sections and calls


Emit = Callable[[str], object]

MAX_UNDECIDED = 128 * 1024  # characters that may turn out not to be a call
MAX_NAME = 256  # characters of a name, a key or a header
_MAX_SPACE_BEFORE_TAG = 256  # characters that wait until it is known what follows a value

_SPACE = re.compile(r"[ \t\r\n]*")


class NotToolCall(Exception):  # internal to the parser: a format gives up
    """The text is not a tool call, or the output ended before it was one."""


class Cursor:
    """A position in the text. While it records, consumed text can be unread."""

    def __init__(self, text: str = "", *, ended: bool = False) -> None:
        self.text = text
        self.at = 0
        self.ended = ended
        self.truncated = False  # the model had not ended it
        self._taken: list[str] = []
        self._left_to_record: int | None = None  # None: not recording

    def append(self, text: str) -> None:
        """Add text. The unread rest of the old text is short, because formats consume what they
        can.
        """
        self.text = self.text[self.at :] + text
        self.at = 0

    def record(self) -> None:
        """Commit everything before, and record what is consumed from here on."""
        self._taken = []
        self._left_to_record = MAX_UNDECIDED

    def forget(self) -> None:
        """Commit everything consumed so far and stop recording."""
        self._taken = []
        self._left_to_record = None

    def unread(self) -> str:
        """Return everything consumed since `record`, and stop recording."""
        text = "".join(self._taken)
        self.forget()
        return text

    def take(self, count: int) -> str:
        """Consume characters that are already in the buffer."""
        if self._left_to_record is not None:
            return self._take_recorded(count)
        self.at += count
        return self.text[self.at - count : self.at]

    def _take_recorded(self, count: int) -> str:
        left = self._left_to_record or 0
        taken = self.text[self.at : self.at + min(count, left)]
        self.at += len(taken)
        self._taken.append(taken)
        self._left_to_record = left - len(taken)
        if count > left:  # exactly at the limit, so that the chunk size makes no difference
            raise NotToolCall
        return taken

    def drop(self) -> None:
        """Discard the buffered text."""
        self.at = len(self.text)

    def peek(self) -> Generator[None, None, str]:
        """The next character, not consumed; "" at the end of the output."""
        while self.at == len(self.text):
            if self.ended:
                return ""
            yield
        return self.text[self.at]

    def ahead(self, count: int) -> Generator[None, None, str]:
        """The next characters, not consumed; fewer at the end of the output."""
        while len(self.text) - self.at < count and not self.ended:
            yield
        return self.text[self.at : self.at + count]

    def skip_space(self, emit: Emit | None = None) -> Generator[None, None, None]:
        """Consume white space, and pass it to `emit`."""
        while True:
            found = _SPACE.match(self.text, self.at)
            if found and found.end() > self.at:
                space = self.take(found.end() - self.at)
                if emit is not None:
                    emit(space)
            if self.at < len(self.text) or self.ended:
                return
            yield

    def skip_closing_brackets(self) -> Generator[None, None, None]:
        """Consume brackets after a call; models write too many or too few."""
        while True:
            yield from self.skip_space()
            if not (yield from self.accept("]", "}")):
                return
            self.record()

    def accept(self, *literals: str) -> Generator[None, None, str]:
        """Consume the longest literal that comes next; "" if none does."""
        ordered = sorted(literals, key=len, reverse=True)
        while True:
            found = next((one for one in ordered if self._may_come(one)), "")
            if self.text.startswith(found, self.at):
                self.take(len(found))
                return found
            yield

    def _may_come(self, literal: str) -> bool:
        if self.text.startswith(literal, self.at):
            return True
        left = len(self.text) - self.at
        return not self.ended and left < len(literal) and literal.startswith(self.text[self.at :])

    def expect(self, *literals: str) -> Generator[None, None, str]:
        """Like `accept`, but raises NotToolCall if none of the literals comes next."""
        found = yield from self.accept(*literals)
        if not found:
            raise NotToolCall
        return found

    def until(self, ends: Markers, limit: int = MAX_NAME) -> Generator[None, None, tuple[str, str]]:
        """The text before the first of the ends, and that end; both are not consumed."""
        reach = limit + ends.longest
        while True:
            start, end = ends.find(self.text, self.at, self.ended, reach)
            if end and start - self.at <= limit:
                return self.text[self.at : start], end
            if end or self.ended or len(self.text) - self.at > reach:
                raise NotToolCall
            yield

    def before(
        self, ends: Markers, emit: Emit, *, pieces_of_ends: bool = True
    ) -> Generator[None, None, str]:
        """Pass the text before the first of the ends to `emit` as it arrives. The end is not
        consumed.

        Returns "" if the output ends first; with `pieces_of_ends`, a possible piece of an end is
        passed on too.
        """
        while True:
            start, end = ends.find(self.text, self.at, self.ended and pieces_of_ends)
            if start > self.at:
                emit(self.take(start - self.at))
            if end or self.ended:
                return end
            yield

    def stream(self, ends: Markers, emit: Emit) -> Generator[None, None, str]:
        """Like `before`, but the end must come, and is consumed."""
        while True:
            start, end = ends.find(self.text, self.at, self.ended)
            if self.ended and not end:
                raise NotToolCall  # keeps what may be a piece of the end
            if start > self.at:
                emit(self.take(start - self.at))
            if end:
                return self.take(len(end))
            yield

    def value(self, ends: ValueEnds, emit: Emit) -> Generator[None, None, None]:
        """Pass a value to `emit` as it arrives, and consume its end, unless that is the call's."""
        contained_its_end = False
        while True:
            end = yield from self.before(ends.of_either, emit, pieces_of_ends=False)
            if not end:
                raise NotToolCall
            complete = end in ends.of_value.literals
            if complete or contained_its_end:
                followers = ends.after_value if complete else ends.after_call
                closes = yield from self.is_followed(len(end), followers)
            else:
                closes = yield from self._closes_call(len(end), ends)
            if closes:
                self.take(len(end) if complete else 0)
                return
            emit(self.take(len(end)))
            contained_its_end |= complete

    def _closes_call(self, count: int, ends: ValueEnds) -> Generator[None, None, bool]:
        """Whether another call or the end of the output comes after so many characters, perhaps
        after the section's end.
        """
        found = yield from self._follower(count, ends.after_call)
        if found and found not in ends.starts.literals:
            count = self.text.index(found, self.at + count) + len(found) - self.at
            found = yield from self._follower(count, ends.starts)
        return found != ""

    def is_followed(
        self, count: int, followers: Markers, *, by_end: bool = True
    ) -> Generator[None, None, bool]:
        """Whether one of the followers comes after so many characters and white space; with
        `by_end`, also whether the output ends there.
        """
        found = yield from self._follower(count, followers)
        return by_end if found is None else bool(found)

    def _follower(self, count: int, followers: Markers) -> Generator[None, None, str | None]:
        """The follower that comes after so many characters and white space; "" if other text does,
        None if the output ends.
        """
        while True:
            start = self.at + count
            space = _SPACE.match(self.text, start, start + _MAX_SPACE_BEFORE_TAG)
            rest = self.text[space.end() if space else start :][: followers.longest]
            found = next((one for one in followers.literals if rest.startswith(one)), "")
            if found or not any(literal.startswith(rest) for literal in followers.literals):
                return found
            if self.ended:
                return None
            yield

    def word(self, pattern: re.Pattern[str], limit: int) -> Generator[None, None, str]:
        """The next characters of one class, not consumed."""
        while True:
            found = pattern.match(self.text, self.at, self.at + limit + 1)
            end = found.end() if found else self.at
            if end - self.at > limit:
                raise NotToolCall
            if end < len(self.text):
                return self.text[self.at : end]
            if self.ended:
                raise NotToolCall  # the word may be truncated
            yield
