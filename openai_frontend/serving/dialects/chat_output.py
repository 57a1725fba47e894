"""Events as OpenAI's deltas, a stream of them, and a message as the sum of its deltas.

So a stream and a whole response cannot disagree.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from openai_frontend.parsing.events import (
    ContentText,
    Event,
    ReasoningText,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from openai_frontend.serving.dialects.chunks import ChunkWriter
from openai_frontend.serving.output.completion_job import CompletionJob, OutputEnd, Usage
from openai_frontend.serving.output.custom_input import CustomInputDecoder
from openai_frontend.serving.output.logprobs import ChatLogprobs
from openai_frontend.serving.output.stream import UnreportedTokens
from openai_frontend.serving.request.tools import Tools
from openai_frontend.sse import CHAT_COMPLETION_CHUNK, TEXT
from openai_frontend.text_relay import AddToken

Delta = Mapping[str, Any]


class ChatDeltas:
    """Turns one choice's events into deltas. A call's id, type and name are sent once."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._inputs: dict[int, CustomInputDecoder] = {}  # of custom tool calls in progress

    def of(self, events: Iterable[Event]) -> list[Delta]:
        """One delta for each event that has visible output, as OpenAI sends them."""
        return [delta for event in events for delta in self._of(event)]

    def template(self, event: ContentText | ReasoningText | ToolCallArguments) -> Delta | None:
        """The delta of the event, which has no text, with `TEXT` for it. None if the delta has not
        just that text.
        """
        match event:
            case ToolCallArguments(index):
                return None if index in self._inputs else next(self._more(index, TEXT))
            case ContentText() | ReasoningText():
                return next(self._of(type(event)(TEXT)))

    def _of(self, event: Event) -> Iterator[Delta]:
        match event:
            case ContentText(text):
                yield {"content": text}
            case ReasoningText(text):
                yield {"reasoning_content": text, "reasoning": text}
            case ToolCallStart():
                yield self._begun(event)
            case ToolCallArguments(index, text):
                yield from self._more(index, text)
            case ToolCallEnd(index) if index in self._inputs:
                text = self._inputs.pop(index).finish()
                if text:
                    yield _call(index, {"custom": {"input": text}})

    def _begun(self, call: ToolCallStart) -> Delta:
        if self._tools.legacy:
            return {"function_call": {"name": call.name, "arguments": ""}}
        if call.name in self._tools.custom:
            self._inputs[call.index] = CustomInputDecoder()
            custom = {"name": call.name, "input": ""}
            return _call(call.index, {"id": call.id, "type": "custom", "custom": custom})
        function = {"name": call.name, "arguments": ""}
        return _call(call.index, {"id": call.id, "type": "function", "function": function})

    def _more(self, index: int, text: str) -> Iterator[Delta]:
        custom = self._inputs.get(index)
        if custom is not None:
            if input_text := custom.feed(text):
                yield _call(index, {"custom": {"input": input_text}})
        elif self._tools.legacy:
            yield {"function_call": {"arguments": text}}
        else:
            yield _call(index, {"function": {"arguments": text}})


def _call(index: int, fields: Delta) -> Delta:
    return {"tool_calls": [{"index": index, **fields}]}


class ChatWriter(ChunkWriter[ChatLogprobs]):
    """Writes a stream of ChatCompletionChunk."""

    def __init__(self, job: CompletionJob) -> None:
        super().__init__(job, CHAT_COMPLETION_CHUNK, ChatLogprobs)
        self._deltas = [ChatDeltas(job.tools) for _ in job.requests]

    def events(
        self, choice: int, events: Sequence[Event], tokens: UnreportedTokens | None
    ) -> bytes:
        """A frame for each delta; the first has the tokens."""
        if len(events) == 1 and type(events[0]) is ContentText:  # the usual token
            return self._frames.detailed(choice, events[0].text, *self._reported(choice, tokens))
        frames = [self._delta(choice, each, tokens) for each in self._deltas[choice].of(events)]
        return b"".join(frames)

    def finish(self, choice: int, end: OutputEnd, tokens: UnreportedTokens | None) -> bytes:
        """A frame for tokens after the last delta, and the frame with the finish reason."""
        rest = self._delta(choice, {}, tokens) if tokens else b""
        return rest + super().finish(choice, end, tokens)

    def closing(self, usage: Usage) -> bytes:
        """The moderation if requested, and what ends every stream of chunks."""
        guard = self._job.guard
        if guard is None:
            return super().closing(usage)
        counts = {"usage": None} if self._options.include_usage else {}
        frame = self._frames.without_choices({"moderation": guard.fields(), **counts})
        return frame + super().closing(usage)

    def _delta(self, choice: int, delta: Delta, tokens: UnreportedTokens | None) -> bytes:
        return self._frames.delta(choice, delta, *self._reported(choice, tokens))

    def around(
        self, choice: int, event: ContentText | ReasoningText | ToolCallArguments
    ) -> list[bytes] | None:
        """None for the input of a custom tool, which is decoded."""
        template = self._deltas[choice].template(event)
        return None if template is None else self._frames.around_delta(choice, template)

    def around_logprobs(self, choice: int) -> tuple[bytes, bytes, bytes] | None:
        """A chunk of text with log probabilities."""
        return self._frames.around_logprobs(choice)

    def on_token(self, choice: int, known: AddToken) -> None:
        """Tokens are known as soon as a frame has them."""
        self._logprobs[choice].on_rendered = known


class ChatMessageBuilder:
    """Adds up one choice's deltas."""

    def __init__(self, tools: Tools) -> None:
        self._deltas = ChatDeltas(tools)
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._function_call: dict[str, Any] | None = None

    def add(self, events: Iterable[Event]) -> None:
        """The next events."""
        for event in events:
            if type(event) is ContentText:
                self._content.append(event.text)
            elif type(event) is ReasoningText:
                self._reasoning.append(event.text)
            else:
                for delta in self._deltas.of((event,)):
                    self._add_call(delta)

    def _add_call(self, delta: Delta) -> None:
        if function_call := delta.get("function_call"):
            self._function_call = _sum(self._function_call or {}, function_call)
        for call in delta.get("tool_calls", ()):
            fields = {name: value for name, value in call.items() if name != "index"}
            if call["index"] == len(self._calls):
                self._calls.append({})
            self._calls[call["index"]] = _sum(self._calls[call["index"]], fields)

    def fields(self, before: str = "") -> dict[str, Any]:
        """The fields of ChatCompletionMessage, with `before` in front of its content."""
        content = before + "".join(self._content)
        only_calls = not content and bool(self._calls or self._function_call)
        fields: dict[str, Any] = {
            "role": "assistant",
            "content": None if only_calls else content,
            "refusal": None,
            "annotations": [],
        }
        if reasoning := "".join(self._reasoning):
            fields |= {"reasoning_content": reasoning, "reasoning": reasoning}
        if self._calls:
            fields["tool_calls"] = self._calls
        if self._function_call is not None:
            fields["function_call"] = self._function_call
        return fields


def _sum(first: Mapping[str, Any], more: Delta) -> dict[str, Any]:
    """Texts concatenated, objects merged by member, as clients add them up."""
    joined = dict(first)
    for name, value in more.items():
        if isinstance(value, Mapping):
            joined[name] = _sum(joined.get(name, {}), value)
        else:
            joined[name] = joined.get(name, "") + value
    return joined
