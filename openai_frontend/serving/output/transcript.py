"""The text of a transcription, from the deltas of its windows: in their order, with times.

Synchronous. A stream and a whole response read the same object, so they cannot disagree.
"""

import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from openai_frontend.errors import InferenceFailed
from openai_frontend.generation import CompletionDelta, TokenLogprobs

_MARK = re.compile(r"<\|[^|]*\|>")
_TIME = re.compile(r"<\|(\d+\.\d+)\|>")
_UNSPACED = frozenset({"zh", "ja", "yue", "th", "lo", "my", "km", "bo"})  # words without spaces

TokenText = Callable[[int], str]


def separator(language: str | None) -> str:
    """What joins the texts of two windows."""
    return "" if language in _UNSPACED else " "


@dataclass(slots=True, kw_only=True)
class _WindowText:
    """The text of one window that is not passed on yet."""

    waiting: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
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
        self, window: int, text: str, logprobs: Sequence[TokenLogprobs] = (), *, ended: bool
    ) -> tuple[str, list[TokenLogprobs]]:
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
        shown = whole.rstrip()
        self._held = whole[len(shown) :]
        if not self._begun:
            self._begun = True
            shown = self._between + shown if self._any else shown
            self._any = True
        return shown


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

    def __init__(self, bounds: Sequence[tuple[float, float]], between: str) -> None:
        """`bounds`: start and length of each window in seconds."""
        self._bounds = bounds
        self._joiner = TextJoiner(len(bounds), between)
        self._tokens = [_Tokens() for _ in bounds]
        self._unfinished = set(range(len(bounds)))
        self._pieces: list[str] = []
        self.logprobs: list[TokenLogprobs] = []  # of all tokens so far

    @property
    def finished(self) -> bool:
        """Whether every window has ended."""
        return not self._unfinished

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    def feed(
        self, window: int, deltas: Iterable[CompletionDelta]
    ) -> tuple[str, list[TokenLogprobs]]:
        """The new text that follows what came before, and the log probabilities of its tokens."""
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
        added, placed = self._joiner.feed(window, shown, logprobs, ended=ended)
        self._pieces.append(added)
        self.logprobs += placed
        return added, placed

    def check_finished(self) -> None:
        """Raise InferenceFailed if a window's output ended without a finish reason."""
        if self._unfinished:
            raise InferenceFailed("the model's output ended without a finish reason")

    def segments(self, token_text: TokenText, decode: Callable[[list[int]], str]) -> list[Segment]:
        """The parts between the model's timestamps, in order.

        `token_text` spells a token, `decode` decodes tokens without special ones.
        """
        found: list[Segment] = []
        for at, (tokens, bounds) in enumerate(zip(self._tokens, self._bounds, strict=True)):
            found += _segments(at, tokens, bounds, token_text, decode)
        return found


def _segments(
    window: int,
    tokens: _Tokens,
    bounds: tuple[float, float],
    token_text: TokenText,
    decode: Callable[[list[int]], str],
) -> Iterable[Segment]:
    """A timestamp ends the part before it, and begins the part after it."""
    offset, length = bounds
    start, begin = 0.0, 0
    marks = [(at, _TIME.fullmatch(token_text(each))) for at, each in enumerate(tokens.ids)]
    ends = [(at, min(float(mark[1]), length)) for at, mark in marks if mark is not None]
    for at, time_s in [*ends, (len(tokens.ids), length)]:
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


def _mean(logprobs: Sequence[TokenLogprobs]) -> float | None:
    values = [float(next(iter(each.values()))["logprob"]) for each in logprobs]
    return sum(values) / len(values) if values else None


def clock(seconds: float, decimal: str) -> str:
    """`00:01:02.500`, with another decimal sign in SRT than in WebVTT."""
    whole = round(seconds * 1000)
    minutes, milliseconds = divmod(whole, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{milliseconds // 1000:02}{decimal}{milliseconds % 1000:03}"


def srt(segments: Sequence[Segment]) -> str:
    """SubRip: numbered blocks, each with its times and its text."""
    return "".join(
        f"{number}\n{clock(each.start, ',')} --> {clock(each.end, ',')}\n{_line(each.text)}\n\n"
        for number, each in enumerate(segments, start=1)
    )


def vtt(segments: Sequence[Segment]) -> str:
    """WebVTT. https://www.w3.org/TR/webvtt1/"""
    blocks = (
        f"{clock(each.start, '.')} --> {clock(each.end, '.')}\n{_escaped(_line(each.text))}\n\n"
        for each in segments
    )
    return "WEBVTT\n\n" + "".join(blocks)


def _line(text: str) -> str:
    """The text as one line: an empty one would end the block."""
    return " ".join(text.split()).replace("-->", "->")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def verbose(segments: Sequence[Segment], temperature: float, silence: Any) -> list[dict[str, Any]]:
    """The fields of each TranscriptionSegment. `silence`: probability of no speech by window."""
    return [
        {
            "id": number,
            "seek": round(each.window_start * 100),
            "start": round(each.start, 2),
            "end": round(each.end, 2),
            "text": each.text,
            "tokens": list(each.token_ids),
            "temperature": temperature,
            "avg_logprob": each.avg_logprob,
            "compression_ratio": each.compression_ratio,
            "no_speech_prob": silence.get(each.window),
        }
        for number, each in enumerate(segments)
    ]
