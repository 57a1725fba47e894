"""The text of a transcription, from the deltas of its windows: in their order, with times.

Synchronous. A stream and a whole response read the same object, so they cannot disagree.
"""

import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from openai_frontend.errors import InferenceFailed
from openai_frontend.generation import CompletionDelta, TokenLogprobs

_MARK = re.compile(r"<\|[^|]*\|>")
_TIME = re.compile(r"<\|(\d+\.\d+)\|>")
_UNSPACED = frozenset({"zh", "ja", "yue", "th", "lo", "my", "km", "bo"})  # words without spaces

_PAUSE_TOKENS = 64  # after as many the caller may pause: finding a time takes 1 us a token

TokenText = Callable[[int], str]
Decode = Callable[[list[int]], str]
Entries = Callable[[Sequence[TokenLogprobs]], Sequence[Any]]


def separator(language: str | None) -> str:
    """The separator between the texts of two windows."""
    return "" if language in _UNSPACED else " "


@dataclass(slots=True, kw_only=True)
class _WindowText:
    """The text of one window that is not passed on yet."""

    waiting: list[str] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    ended: bool = False


class TextJoiner:
    """Passes on the texts of windows in their order, while they arrive in any order.

    The joined text has no white space at its ends, nor more than one separator between windows.
    """

    def __init__(self, windows: int, between: str) -> None:
        self._windows = [_WindowText() for _ in range(windows)]
        self._between = between
        self._current = 0
        self._held = ""  # white space, which the end of a window drops
        self._begun = False  # whether the current window has text
        self._any = False

    def feed(
        self, window: int, text: str, logprobs: Sequence[Any] = (), *, ended: bool
    ) -> tuple[str, list[Any]]:
        """The text that can be passed on now, and the log probabilities of its tokens."""
        fed = self._windows[window]
        fed.waiting.append(text)
        fed.logprobs += logprobs
        fed.ended = fed.ended or ended
        pieces, tokens = [], []
        while self._current < len(self._windows):
            current = self._windows[self._current]
            pieces.append(self._visible("".join(current.waiting)))
            tokens += current.logprobs
            current.waiting, current.logprobs = [], []
            if not current.ended:
                break
            self._current += 1
            self._held, self._begun = "", False
        return "".join(pieces), tokens

    def _visible(self, text: str) -> str:
        if not self._begun:
            text = text.lstrip()
        if not text:
            return ""
        whole = self._held + text
        visible = whole.rstrip()
        self._held = whole[len(visible) :]
        if not self._begun:
            self._begun = True
            visible = self._between + visible if self._any else visible
            self._any = True
        return visible


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of the text; times in seconds of the whole audio."""

    start: float
    end: float
    text: str
    token_ids: Sequence[int]
    avg_logprob: float | None
    window_start: float
    window: int

    @property
    def compression_ratio(self) -> float:
        """Bytes of the text by those after compression: repetitions have a large one."""
        raw = self.text.encode()
        return len(raw) / len(zlib.compress(raw))


@dataclass(slots=True)
class _Tokens:
    """The tokens of one window."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


class Transcript:
    """Gathers the deltas of all windows."""

    def __init__(
        self, bounds: Sequence[tuple[float, float]], between: str, entries: Entries | None = None
    ) -> None:
        """`bounds`: start and length of each window in seconds. `entries` turns log probabilities
        into those of the response as they arrive: those of all windows at once would take 0.2 s.
        """
        self._bounds = bounds
        self._entries = entries
        self._joiner = TextJoiner(len(bounds), between)
        self._tokens = [_Tokens() for _ in bounds]
        self._unfinished = set(range(len(bounds)))
        self._pieces: list[str] = []
        self.logprobs: list[Any] = []  # entries of all tokens so far

    @property
    def finished(self) -> bool:
        """Whether every window has ended."""
        return not self._unfinished

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    def feed(self, window: int, deltas: Iterable[CompletionDelta]) -> tuple[str, list[Any]]:
        """The new text that follows what came before, and the entries of its tokens."""
        text: list[str] = []
        logprobs: list[TokenLogprobs] = []
        tokens = self._tokens[window]
        for delta in deltas:
            text.append(delta.text)
            tokens.ids += delta.token_ids
            if delta.logprobs is not None:
                logprobs += delta.logprobs
            if delta.finish_reason is not None:
                if delta.finish_reason == "abort":
                    raise InferenceFailed("The engine aborted the transcription.")
                self._unfinished.discard(window)
        tokens.logprobs += logprobs
        shown = _MARK.sub("", "".join(text))
        ended = window not in self._unfinished
        entries = () if self._entries is None else self._entries(logprobs)
        added, placed = self._joiner.feed(window, shown, entries, ended=ended)
        self._pieces.append(added)
        self.logprobs += placed
        return added, placed

    def check_finished(self) -> None:
        """Raise InferenceFailed if a window's output ended without a finish reason."""
        if self._unfinished:
            raise InferenceFailed("the model's output ended without a finish reason")

    def segments(self, token_text: TokenText, decode: Decode) -> Iterator[Segment | None]:
        """The parts between the model's timestamps, in order, and None where the caller may pause.

        `token_text` spells a token, `decode` decodes tokens without special ones.
        """
        for at, (tokens, bounds) in enumerate(zip(self._tokens, self._bounds, strict=True)):
            yield from _segments(at, tokens, bounds, token_text, decode)


def _segments(
    window: int,
    tokens: _Tokens,
    bounds: tuple[float, float],
    token_text: TokenText,
    decode: Decode,
) -> Iterator[Segment | None]:
    """A timestamp ends the part before it, and begins the part after it."""
    offset, length = bounds
    start, begin = 0.0, 0
    for mark in _times(tokens.ids, token_text):
        if mark is None:
            yield None
            continue
        at, time_s = mark[0], min(mark[1], length)
        ids = tokens.ids[begin:at]
        text = decode(ids)
        if text.strip():
            yield Segment(
                start=offset + start,
                end=offset + max(start, time_s),
                text=text,
                token_ids=ids,
                avg_logprob=_mean(tokens.logprobs[begin:at]),
                window_start=offset,
                window=window,
            )
        start, begin = time_s, at + 1


def _times(ids: Sequence[int], token_text: TokenText) -> Iterator[tuple[int, float] | None]:
    """Position and time of each mark, and the end of the window; None after some tokens."""
    for at, each in enumerate(ids):
        if at % _PAUSE_TOKENS == 0:
            yield None
        if (mark := _TIME.fullmatch(token_text(each))) is not None:
            yield at, float(mark[1])
    yield len(ids), math.inf


def _mean(logprobs: Sequence[TokenLogprobs]) -> float | None:
    values = [float(next(iter(each.values()))["logprob"]) for each in logprobs]
    return sum(values) / len(values) if values else None


def clock(seconds: float, decimal: str) -> str:
    """`00:01:02.500`, with another decimal sign in SRT than in WebVTT."""
    whole = round(seconds * 1000)
    minutes, milliseconds = divmod(whole, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{milliseconds // 1000:02}{decimal}{milliseconds % 1000:03}"


def srt_block(number: int, segment: Segment) -> str:
    """A block of SubRip: its number from 1, its times and its text."""
    times = f"{clock(segment.start, ',')} --> {clock(segment.end, ',')}"
    return f"{number}\n{times}\n{_line(segment.text)}\n\n"


VTT_HEAD = "WEBVTT\n\n"


def vtt_block(segment: Segment) -> str:
    """A block of WebVTT, after `VTT_HEAD`. https://www.w3.org/TR/webvtt1/"""
    times = f"{clock(segment.start, '.')} --> {clock(segment.end, '.')}"
    return f"{times}\n{_escaped(_line(segment.text))}\n\n"


def _line(text: str) -> str:
    """The text as one line: an empty one would end the block."""
    return " ".join(text.split()).replace("-->", "->")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def verbose_segment(
    number: int, segment: Segment, temperature: float, silence: float | None
) -> dict[str, Any]:
    """The fields of a TranscriptionSegment. `silence`: its window's probability of no speech."""
    return {
        "id": number,
        "seek": round(segment.window_start * 100),
        "start": round(segment.start, 2),
        "end": round(segment.end, 2),
        "text": segment.text,
        "tokens": list(segment.token_ids),
        "temperature": temperature,
        "avg_logprob": segment.avg_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": silence,
    }
