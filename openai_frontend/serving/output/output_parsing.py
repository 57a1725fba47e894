"""Parses output into neutral events, delta by delta: content, reasoning and tool calls.

What they look like in a response is up to those who write it: `stream.py` and `collect.py`. Stops a
choice whose output is complete before the engine's own end.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from openai_frontend.generation import (
    CompletionDelta,
    FinishReason,
    GenerationRequest,
    TokenCounts,
    UsageCounter,
    merge_deltas,
)
from openai_frontend.parsing.events import (
    MAX_ARGUMENTS,
    ArgumentsTooLong,
    ContentText,
    Event,
    OpenSegment,
    ReasoningText,
    ToolCallArguments,
    ToolCallEnd,
)
from openai_frontend.parsing.parser import FamilyParser, Parser
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.serving.admission.model import Describes, Renders
from openai_frontend.serving.request.sampling import Constraint
from openai_frontend.serving.request.tools import Tools

TokenBytes = Callable[[int], bytes | None]
_STEP_TOKENS = 256  # parsed in one step if each token is counted: about 1 ms
# Output of this many tokens cannot exceed the limit on arguments: 16 bytes a token would be many.
_SHORT_OUTPUT_TOKENS = MAX_ARGUMENTS // 16
_CHECK_INTERVAL_TOKENS = 256  # between checks of longer output that is not streamed
_PROMPT_END_TOKENS = 64  # in which a template says whether the output begins with reasoning


@dataclass(slots=True)
class ParsedDelta(CompletionDelta):
    """A delta and the events parsed from its text, which replace the text."""

    events: Sequence[Event] = ()
    reasoning_tokens: int = 0
    called: bool = False  # on the last delta: complete calls ended the output
    # On the last delta of a burst: what the next output continues, if it may be relayed
    segment: OpenSegment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserConfig:
    """How to parse the choices of one job."""

    new_parser: Callable[[], Parser]  # one for each choice
    token_bytes: TokenBytes
    may_call: bool = False  # tools are offered
    parallel_calls: bool = True  # False: the first call ends the output
    reads_token_ids: bool = False  # the parser does, besides text
    reasoning: bool = True  # the parser separates reasoning from content
    include_reasoning: bool = True

    async def parse(
        self, generation: AsyncGenerator[list[CompletionDelta], None], request: GenerationRequest
    ) -> AsyncGenerator[list[CompletionDelta], None]:
        """One choice's deltas, parsed. Cancels the generation once its output is complete."""
        parser = DeltaParser(self, request.usage)
        async with aclosing(generation):
            async for deltas in generation:
                parsed: list[CompletionDelta] = []
                last: ParsedDelta | None = None
                for delta in parser.in_steps(deltas):
                    if parsed and len(delta.token_ids) == _STEP_TOKENS:
                        await asyncio.sleep(0)  # a whole response may take 100 ms to parse
                    parsed.append(last := parser.parse(delta))
                    if parser.stopped:
                        break
                if request.relay is not None and last is not None:
                    last.segment = parser.segment()
                yield parsed
                if parser.stopped:
                    return


class DeltaParser:
    """Parses the deltas of one choice."""

    def __init__(self, config: ParserConfig, usage: UsageCounter) -> None:
        """`usage` counts the deltas; it is finished here if the output ends before the engine's."""
        self.stopped = False  # the output is complete, whatever the engine still generates
        self._parser = config.new_parser()
        self._config = config
        self._usage = usage
        self._counted = 0  # tokens of the counts passed on so far
        self._tokens = 0  # of the deltas so far, as far as the model counts them
        self._called = False  # a tool call is complete

    def in_steps(self, deltas: Sequence[CompletionDelta]) -> Iterator[CompletionDelta]:
        """The deltas; those of many tokens are split."""
        for delta in deltas:
            if len(delta.token_ids) <= _STEP_TOKENS or not self._config.reasoning:
                yield delta
            else:
                yield from self._steps(delta)

    def _steps(self, delta: CompletionDelta) -> Iterator[CompletionDelta]:
        """Deltas of `_STEP_TOKENS`; fields other than text and ids come with the last."""
        ids: list[int] = []
        texts: list[str] = []
        for token, text in self._by_token(delta):
            if len(ids) == _STEP_TOKENS:
                yield CompletionDelta("".join(texts), ids)
                ids, texts = [], []
            ids.append(token)
            texts.append(text)
        yield replace(delta, text="".join(texts), token_ids=ids)

    def parse(self, delta: CompletionDelta) -> ParsedDelta:
        """One delta with its events. It gets a finish reason if it completes the output."""
        reasoning_tokens, events = self._events(delta)
        if delta.finish_reason is not None:
            if delta.finish_reason != "stop" and isinstance(self._parser, FamilyParser):
                self._parser.truncate()
            events += self._parser.finish()
        self._tokens += len(delta.token_ids) or delta.tokens
        if delta.counts is not None:
            self._counted += delta.counts.completion_tokens
        parsed = ParsedDelta(
            delta.text,
            delta.token_ids,
            delta.finish_reason,
            delta.stop_reason,
            delta.counts,
            delta.logprobs,
            delta.prompt_logprobs,
            relayed=delta.relayed,  # then the client has their text
            events=events,
            reasoning_tokens=reasoning_tokens,
        )
        if len(events) != 1 or type(events[0]) is not ContentText or self.stopped:
            parsed.events = [each for each in merge_events(events) if self._keeps(each, parsed)]
        if parsed.finish_reason == "stop" and self._called:
            parsed.called = True
        return parsed

    def segment(self) -> OpenSegment | None:
        """The text that the next output continues, if it can be shown before it is parsed."""
        parser = self._parser
        if self.stopped or not isinstance(parser, FamilyParser):
            return None
        return parser.segment()

    def _events(self, delta: CompletionDelta) -> tuple[int, list[Event]]:
        """The number of reasoning tokens, and the events."""
        ids, parser = delta.token_ids, self._parser
        if len(ids) <= 1 or not self._config.reasoning:
            tokens = len(ids) or delta.tokens or bool(delta.text)
            reasoning = tokens if parser.in_reasoning else 0
            return int(reasoning), parser.feed(delta.text, ids)
        reasoning, events = 0, []
        for token, text in self._by_token(delta):
            reasoning += parser.in_reasoning
            events += parser.feed(text, [token])
        return reasoning, events

    def _by_token(self, delta: CompletionDelta) -> Iterator[tuple[int, str]]:
        """Token ids with their texts, as far as the tokenizer knows them, so that each token counts
        as what it belongs to. The last token gets the rest of the text.
        """
        text, at, used = delta.text.encode("utf-8", "surrogatepass"), 0, 0
        *others, last = delta.token_ids
        for token in others:
            raw = self._config.token_bytes(token) or b""
            at += _shown(raw, text, at)
            piece = text[used:at]
            if at < len(text) and text[at] & 0xC0 == 0x80:  # within a character
                piece = b""
            used += len(piece)
            yield token, piece.decode("utf-8", "surrogatepass")
        yield last, text[used:].decode("utf-8", "surrogatepass")

    def _keeps(self, event: Event, delta: ParsedDelta) -> bool:
        """Whether the event is part of the output. May stop the choice."""
        if self.stopped:
            return False
        match event:
            case ReasoningText():
                return self._config.include_reasoning
            case ArgumentsTooLong():
                self._stop(delta, "length")
            case ToolCallEnd():
                self._called = self._called or event.complete
                if not self._config.parallel_calls:
                    self._stop(delta, _stop_reason(event, delta))
        return True

    def _stop(self, delta: ParsedDelta, reason: FinishReason) -> None:
        """Make this delta the last. The engine is cancelled and will not report counts."""
        self.stopped = True
        delta.finish_reason = reason
        usage = self._usage
        usage.finish(reason, self._tokens)
        if delta.counts is None:
            delta.counts = TokenCounts(
                usage.prompt_tokens,
                usage.completion_tokens - self._counted,
                usage.cached_tokens,
                usage.image_tokens,
                usage.audio_tokens,
            )


def _stop_reason(call: ToolCallEnd, delta: ParsedDelta) -> FinishReason:
    """Why output ends that may have only one call."""
    if call.complete:
        return "stop"
    if ArgumentsTooLong(call.index) in delta.events:
        return "length"
    return delta.finish_reason or "stop"  # the engine ended an incomplete call


def _shown(raw: bytes, text: bytes, at: int) -> int:
    """How many bytes of the text at this offset are the token's; special tokens may be left out."""
    for form in (raw, raw.removeprefix(b" ")):  # sentencepiece puts a space before the text
        if text.startswith(form, at):
            return len(form)
    return 0


def merge_events(events: Sequence[Event]) -> list[Event]:
    """The events, with adjacent pieces of one text joined."""
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
    """Several parsed deltas as one."""
    parsed = [delta for delta in deltas if isinstance(delta, ParsedDelta)]
    merged = merge_deltas(deltas)
    return ParsedDelta(
        text=merged.text,
        token_ids=merged.token_ids,
        finish_reason=merged.finish_reason,
        stop_reason=merged.stop_reason,
        counts=merged.counts,
        logprobs=merged.logprobs,
        prompt_logprobs=merged.prompt_logprobs,
        events=merge_events([event for each in parsed for event in each.events]),
        reasoning_tokens=sum(each.reasoning_tokens for each in parsed),
        called=parsed[-1].called,
    )


def keep_special_tokens(model: Describes) -> bool:
    """Whether the engine must keep special tokens in the text, as some parsers need."""
    return model.output_format.special_tokens and model.supports("skip_special_tokens")


def prompt_text(prompt: Prompt, model: Renders) -> str:
    """The text that shows whether the output begins with reasoning: the prompt, or the end of a
    truncated one, which is known only as tokens.
    """
    if prompt.text is not None:
        return prompt.text
    return model.detokenize(list(prompt.token_ids[-_PROMPT_END_TOKENS:]))


def parser_config(
    tools: Tools,
    constraint: Constraint,
    prompt: str | None,
    model: Renders,
    variables: Mapping[str, Any],
    *,
    continued: bool = False,
) -> ParserConfig:
    """How to parse each choice. `prompt` is the result of `prompt_text`, or the message that is
    `continued`; `variables` are those of the chat template.
    """
    return ParserConfig(
        new_parser=partial(
            model.output_format.parser,
            tools.functions if tools.in_use else {},
            prompt=prompt,
            continued=continued,
            forced=constraint.forced,
            any_call=constraint.any_call,
            variables=variables,
        ),
        token_bytes=model.token_bytes,
        may_call=tools.in_use,
        parallel_calls=tools.parallel,
        reads_token_ids=model.output_format.external is not None,
        reasoning=model.output_format.reasoning,
    )


def with_parser_needs(
    first: GenerationRequest, config: ParserConfig, model: Describes
) -> GenerationRequest:
    """The request, adapted to a parser. The model counts tokens, or returns their ids, to count
    reasoning tokens. It streams if the parser may end the output: after the first call, or at
    arguments that exceed the limit.
    """
    stream, interval = _streaming(first, config, model)
    counts = stream and not config.reads_token_ids and model.supports("count_tokens")
    ids = (config.reasoning or config.reads_token_ids) and model.supports("return_token_ids")
    return replace(
        first,
        stream=stream,
        stream_interval=interval,
        relay=first.relay if counts else None,
        count_tokens=counts,
        return_token_ids=first.return_token_ids or (ids and not counts),
    )


def with_counted_relay(first: GenerationRequest, model: Describes) -> GenerationRequest:
    """The request of output that no parser reads, whose relayed text is reported too."""
    counts = first.stream and model.supports("count_tokens")
    return replace(first, relay=first.relay if counts else None, count_tokens=counts)


def _streaming(
    first: GenerationRequest, config: ParserConfig, model: Describes
) -> tuple[bool, int]:
    """Whether the model streams, and the tokens per response."""
    max_tokens = first.sampling_params.max_tokens
    if first.stream or not config.may_call or not model.supports("stream"):
        return first.stream, first.stream_interval
    if not config.parallel_calls:
        return True, first.stream_interval
    if max_tokens is not None and max_tokens <= _SHORT_OUTPUT_TOKENS:
        return False, first.stream_interval
    return True, _CHECK_INTERVAL_TOKENS if model.supports("stream_interval") else 1
