"""Cuts deltas of output at the ends of sentences, so that each sentence can be held back."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from openai_frontend.generation import CompletionDelta
from openai_frontend.parsing.events import ContentText, Event, ReasoningText, ToolCallArguments
from openai_frontend.serving.output.output_parsing import ParsedDelta

MAX_PIECE = 2000  # characters; a longer sentence is cut
# Without `+`, which would take quadratic time for a text of dots
_END = re.compile(r"[.!?\u2026][\"'\u201d\u2019)\]]{0,6}\s|[\u3002\uff01\uff1f]|\n")
_BEFORE = 8  # characters of earlier deltas in which an end may begin
_SHORT_PIECE = 200  # characters below which sentences of a prompt are joined


def pieces(text: str) -> list[str]:
    """The text as sentences of at most MAX_PIECE characters. Short ones are joined: a prompt of
    many lines is then fewer inputs, and its words are not seen one by one.
    """
    found: list[str] = []
    joined = ""
    for part, ends in _Cutter().cut(text):
        if len(joined) + len(part) > MAX_PIECE:
            found.append(joined)
            joined = ""
        joined += part
        if ends and len(joined) >= _SHORT_PIECE:
            found.append(joined)
            joined = ""
    return [each for each in (*found, joined) if each.strip()]


class _Cutter:
    """Finds the ends of sentences in a text that arrives in parts."""

    def __init__(self) -> None:
        self._length, self._tail = 0, ""

    def cut(self, text: str) -> Iterator[tuple[str, bool]]:
        """The parts of a text, and whether a sentence ends with each."""
        at = 0
        while at < len(text):
            part = text[at : at + MAX_PIECE - self._length]
            end = _END.search(self._tail + part)
            if end is not None:
                part = part[: end.end() - len(self._tail)]
            at += len(part)
            self._length += len(part)
            ends = end is not None or self._length >= MAX_PIECE
            self._length = 0 if ends else self._length
            self._tail = "" if ends else (self._tail + part)[-_BEFORE:]
            yield part, ends


class Sentence:
    """Deltas and their text, up to the end of a sentence."""

    def __init__(self) -> None:
        self.deltas: list[CompletionDelta] = []
        self._texts: list[str] = []

    def add(self, delta: CompletionDelta, text: str) -> None:
        self.deltas.append(delta)
        self._texts.append(text)

    @property
    def text(self) -> str:
        return "".join(self._texts)


class SentenceBuffer:
    """Holds the deltas of one choice until their sentence is complete. All text that a client can
    see counts: content, reasoning and the arguments of tool calls, each in sentences of its own.
    """

    def __init__(self) -> None:
        self._sentence = Sentence()
        self._cutter = _Cutter()
        self._kind: object = None

    def feed(self, deltas: Sequence[CompletionDelta]) -> list[Sentence]:
        """The sentences that are complete with these deltas. The last delta completes all."""
        complete: list[Sentence] = []
        for delta in deltas:
            for kind, part in _by_kind(delta):
                # A delta whose text the parser withholds continues what is there
                if kind is not None and kind != self._kind:
                    self._end(complete)
                    self._kind, self._cutter = kind, _Cutter()
                self._add(part, complete)
            if delta.finish_reason is not None:
                self._end(complete)
        return complete

    def _add(self, delta: CompletionDelta, complete: list[Sentence]) -> None:
        text = _text(delta)
        if not text:
            self._sentence.add(delta, "")
            return
        cuts = list(self._cutter.cut(text))
        for at, (part, ends) in enumerate(cuts):
            last = at == len(cuts) - 1
            self._sentence.add(_with_text(delta, part, keeps_rest=last), part)
            if ends and not (last and delta.finish_reason is not None):
                self._end(complete)

    def _end(self, complete: list[Sentence]) -> None:
        if self._sentence.deltas:
            complete.append(self._sentence)
        self._sentence = Sentence()


def visible_text(delta: CompletionDelta) -> str:
    """All text of a delta that a client can see."""
    return "".join(_text(part) for _, part in _by_kind(delta))


def _by_kind(delta: CompletionDelta) -> Iterator[tuple[object, CompletionDelta]]:
    """The delta as parts with at most one event each, and the kind of their text, None without
    one. The last part has everything else: counts, tokens and the finish reason.
    """
    if not isinstance(delta, ParsedDelta):
        yield ContentText, delta
        return
    if not delta.events:
        yield None, delta
        return
    *others, last = delta.events
    for event in others:
        yield _kind(event), ParsedDelta(events=[event])
    yield _kind(last), replace(delta, events=[last])


def _kind(event: Event) -> object:
    if isinstance(event, ToolCallArguments):
        return event.index
    return ReasoningText if isinstance(event, ReasoningText) else type(event)


def _text(delta: CompletionDelta) -> str:
    if not isinstance(delta, ParsedDelta):
        return delta.text
    shown = (ContentText, ReasoningText, ToolCallArguments)
    return "".join(each.text for each in delta.events if isinstance(each, shown))


def _with_text(delta: CompletionDelta, text: str, *, keeps_rest: bool) -> CompletionDelta:
    """The delta with a part of its text. Only one of the parts keeps the rest."""
    if not isinstance(delta, ParsedDelta):
        return replace(delta, text=text) if keeps_rest else CompletionDelta(text)
    [event] = delta.events
    part: Event
    if isinstance(event, ToolCallArguments):
        part = ToolCallArguments(event.index, text)
    else:
        part = ReasoningText(text) if isinstance(event, ReasoningText) else ContentText(text)
    return replace(delta, events=[part]) if keeps_rest else ParsedDelta(events=[part])
