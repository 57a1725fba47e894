"""One choice's deltas with what their text says: content, reasoning and calls, as events.

Ends a choice that has come to its end before the engine knows. Never writes anything of an answer.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Literal

from openai_frontend.generation import (
    CompletionDelta,
    FinishReason,
    GenerationRequest,
    TokenCounts,
    UsageCounter,
    merge_deltas,
)
from openai_frontend.parsing.events import (
    ArgumentsTooLong,
    ContentText,
    Event,
    ReasoningText,
    ToolCallArguments,
    ToolCallEnd,
)
from openai_frontend.parsing.parser import Parser
from openai_frontend.serving.request.tools import Tools

TokenBytes = Callable[[int], bytes | None]
_STEP = 256  # tokens that are read in one go where each is counted: about 1 ms
CallReason = Literal["tool_calls", "function_call"]


@dataclass(slots=True)
class ParsedDelta(CompletionDelta):
    """A delta, and what its text says; the events, not the text, are for the reader."""

    events: Sequence[Event] = ()
    reasoning_tokens: int = 0
    calls: CallReason | None = None  # on the last delta, where it is calls that ended the answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserConfig:
    """How one answer's choices are read."""

    tools: Tools
    parser: Callable[[], Parser]  # a new one for each choice
    token_bytes: TokenBytes
    reasoning: bool = True  # the parser tells reasoning apart
    include_reasoning: bool = True

    async def read(
        self, generation: AsyncGenerator[list[CompletionDelta], None], request: GenerationRequest
    ) -> AsyncGenerator[list[CompletionDelta], None]:
        """The deltas of one choice, read; it is cancelled where nothing more of it is wanted."""
        reader = DeltaParser(self, request.usage)
        async with aclosing(generation):
            async for deltas in generation:
                read: list[CompletionDelta] = []
                for delta in reader.in_steps(deltas):
                    if read and len(delta.token_ids) == _STEP:
                        await asyncio.sleep(0)  # a whole answer may be 100 ms of parsing
                    read.append(reader.read(delta))
                    if reader.cut:
                        break
                yield read
                if reader.cut:
                    return


class DeltaParser:
    """Reads the deltas of one choice."""

    def __init__(self, reading: ParserConfig, usage: UsageCounter) -> None:
        """`usage` counts what is read; it learns where the answer ends before the engine's end."""
        self.cut = False  # the answer is over, whatever else the engine would say
        self._parser = reading.parser()
        self._reading = reading
        self._usage = usage
        self._counted = 0  # tokens of the counts that have been passed on
        self._called = False  # a call has ended well

    def in_steps(self, deltas: Sequence[CompletionDelta]) -> Iterator[CompletionDelta]:
        """The deltas, those of many tokens as several."""
        for delta in deltas:
            if len(delta.token_ids) <= _STEP or not self._reading.reasoning:
                yield delta
            else:
                yield from self._steps(delta)

    def _steps(self, delta: CompletionDelta) -> Iterator[CompletionDelta]:
        """What is told beside text and ids comes with the last."""
        ids: list[int] = []
        texts: list[str] = []
        for token, text in self._by_token(delta):
            if len(ids) == _STEP:
                yield CompletionDelta("".join(texts), ids)
                ids, texts = [], []
            ids.append(token)
            texts.append(text)
        yield replace(delta, text="".join(texts), token_ids=ids)

    def read(self, delta: CompletionDelta) -> ParsedDelta:
        """One delta with its events; the last one where it ends the choice."""
        reasoning_tokens, events = self._parse(delta)
        if delta.finish_reason is not None:
            events += self._parser.finish()
        if delta.counts is not None:
            self._counted += delta.counts.completion_tokens
        read = ParsedDelta(
            delta.text,
            delta.token_ids,
            delta.finish_reason,
            delta.stop_reason,
            delta.counts,
            delta.logprobs,
            delta.prompt_logprobs,
            events,
            reasoning_tokens,
        )
        if len(events) != 1 or type(events[0]) is not ContentText or self.cut:
            read.events = [event for event in merge_events(events) if self._is_told(event, read)]
        if read.finish_reason == "stop" and self._called:
            read.calls = "function_call" if self._reading.tools.legacy else "tool_calls"
        return read

    def _parse(self, delta: CompletionDelta) -> tuple[int, list[Event]]:
        """Its events, and how many of its tokens are reasoning."""
        ids, parser = delta.token_ids, self._parser
        if len(ids) <= 1 or not self._reading.reasoning:
            reasoning = (len(ids) or bool(delta.text)) if parser.in_reasoning else 0
            return int(reasoning), parser.feed(delta.text, ids)
        reasoning, events = 0, []
        for token, text in self._by_token(delta):
            reasoning += parser.in_reasoning
            events += parser.feed(text, [token])
        return reasoning, events

    def _by_token(self, delta: CompletionDelta) -> Iterator[tuple[int, str]]:
        """The text token by token, as far as the tokenizer says, so that each is counted where it
        stands. What of the text no token accounts for comes with the last one.
        """
        text, at, told = delta.text.encode("utf-8", "surrogatepass"), 0, 0
        *most, last = delta.token_ids
        for token in most:
            raw = self._reading.token_bytes(token) or b""
            at += _shown(raw, text, at)
            piece = text[told:at]
            if at < len(text) and text[at] & 0xC0 == 0x80:  # within a character
                piece = b""
            told += len(piece)
            yield token, piece.decode("utf-8", "surrogatepass")
        yield last, text[told:].decode("utf-8", "surrogatepass")

    def _is_told(self, event: Event, read: ParsedDelta) -> bool:
        """Whether the event is a part of the answer; it may be what ends it."""
        if self.cut:
            return False
        match event:
            case ReasoningText():
                return self._reading.include_reasoning
            case ArgumentsTooLong():
                self._end(read, "length")
            case ToolCallEnd():
                self._called = self._called or event.complete
                if not self._reading.tools.parallel:
                    self._end(read, _reason_of_end(event, read))
        return True

    def _end(self, read: ParsedDelta, reason: FinishReason) -> None:
        """This delta is the last: the engine, which is stopped, will not tell any counts."""
        self.cut = True
        read.finish_reason = reason
        usage = self._usage
        usage.finish(reason)
        if read.counts is None:
            read.counts = TokenCounts(
                usage.prompt_tokens, usage.completion_tokens - self._counted, usage.cached_tokens
            )


def _reason_of_end(call: ToolCallEnd, read: ParsedDelta) -> FinishReason:
    """Why an answer ends that may hold one call alone."""
    if call.complete:
        return "stop"
    if ArgumentsTooLong(call.index) in read.events:
        return "length"
    return read.finish_reason or "stop"  # a call that the engine cut short ends as the engine says


def _shown(raw: bytes, text: bytes, at: int) -> int:
    """How much of the text, from here on, is this token's; special ones may have been left out."""
    for form in (raw, raw.removeprefix(b" ")):  # sentencepiece puts a space before the text
        if text.startswith(form, at):
            return len(form)
    return 0


def merge_events(events: Sequence[Event]) -> list[Event]:
    """The same in as few events as can be: neighbouring pieces of one text are one."""
    if len(events) < 2:
        return list(events)
    runs: list[tuple[Event, list[str]]] = []
    for event in events:
        first = runs[-1][0] if runs else None
        if not isinstance(event, ContentText | ReasoningText | ToolCallArguments):
            runs.append((event, []))
        elif type(first) is type(event) and runs:
            runs[-1][1].append(event.text)
        else:
            runs.append((event, [event.text]))
    return [_joined(event, pieces) for event, pieces in runs]


def _joined(event: Event, pieces: Sequence[str]) -> Event:
    match event:
        case ToolCallArguments(index):
            return ToolCallArguments(index, "".join(pieces))
        case ContentText() | ReasoningText():
            return type(event)("".join(pieces))
    return event


def merge_parsed(deltas: Sequence[CompletionDelta]) -> CompletionDelta:
    """Several read deltas as one."""
    reads = [delta for delta in deltas if isinstance(delta, ParsedDelta)]
    whole = merge_deltas(deltas)
    return ParsedDelta(
        text=whole.text,
        token_ids=whole.token_ids,
        finish_reason=whole.finish_reason,
        stop_reason=whole.stop_reason,
        counts=whole.counts,
        logprobs=whole.logprobs,
        prompt_logprobs=whole.prompt_logprobs,
        events=merge_events([event for read in reads for event in read.events]),
        reasoning_tokens=sum(read.reasoning_tokens for read in reads),
        calls=reads[-1].calls,
    )
