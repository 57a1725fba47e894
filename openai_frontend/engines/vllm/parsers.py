"""vLLM's tool and reasoning parsers, for one output at a time. Needs no engine.

Their results depend on how the text is split into pieces. So here it is always split the same way:
`Pieces` cuts the text, and the token ids are those of the pieces.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from openai_frontend.engines.vllm import arguments, capabilities, versions
from openai_frontend.engines.vllm.processes import environment
from openai_frontend.parsing.buffer import Markers
from openai_frontend.parsing.events import (
    ContentText,
    Event,
    ReasoningText,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    openai_id,
)

Schemas = Mapping[str, Mapping[str, Any]]  # function name -> schema of its arguments

_PROMPT_END = 4096  # characters of the prompt in which a parser can find whether reasoning is open
_HARMONY = ("openai", "openai_gptoss")
_WORD = 16  # maximum length of a piece
_PLAIN = re.compile(rf"\w{{1,{_WORD}}}|\W")


def names(setting: str) -> list[str]:
    """The parsers that vLLM knows, for `tool_call_parser` or `reasoning_parser`. Raises ValueError
    if the gateway cannot use those of the installed vLLM.
    """
    with environment.restored():
        arguments.set_environment()
        reason = versions.installed().missing.get(capabilities.PARSERS.name)
        if reason is not None:
            raise ValueError(f"vLLM's parsers cannot be used: {reason}")
        from vllm.reasoning import ReasoningParserManager
        from vllm.tool_parsers import ToolParserManager

    manager = ToolParserManager if setting == "tool_call_parser" else ReasoningParserManager
    known: list[str] = manager.list_registered()
    return known


def load(
    folder: Path, *, tool_call_parser: str | None = None, reasoning_parser: str | None = None
) -> tuple[Callable[[Schemas, str | None, Mapping[str, Any]], "VLLMParser"], bool]:
    """Return a parser factory with the tokenizer of this folder, and whether its parsers need
    special tokens in the text.

    Raises whatever vLLM raises if they do not fit the tokenizer.
    """
    with environment.restored():
        from vllm.tokenizers import get_tokenizer

        tokenizer = get_tokenizer(str(folder))
        with_tools = _parser_class(tokenizer, tool_call_parser, reasoning_parser)
        without = _parser_class(tokenizer, None, reasoning_parser)
    markers = Markers(*(token for token in tokenizer.get_added_vocab() if len(token) > 1))
    encode = lru_cache(maxsize=16384)(lambda text: _encoded(tokenizer, text))

    def make(tools: Schemas, prompt: str | None, variables: Mapping[str, Any]) -> VLLMParser:
        parser_class = with_tools if tools else without
        template_kwargs = dict(variables)
        request = _request(tools, template_kwargs)
        parser = parser_class and parser_class(
            tokenizer, request.tools, chat_template_kwargs=template_kwargs
        )
        prompt_ids = _encoded(tokenizer, (prompt or "")[-_PROMPT_END:])
        return VLLMParser(parser, request, Pieces(markers), encode, prompt_ids)

    return make, _keeps_special_tokens(with_tools, tokenizer)


def _encoded(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def _parser_class(
    tokenizer: Any, tool_call_parser: str | None, reasoning_parser: str | None
) -> Any:
    """None if neither is named."""
    from vllm.parser.parser_manager import ParserManager

    return ParserManager.get_parser(
        tool_call_parser,
        reasoning_parser,
        enable_auto_tools=True,
        model_name=str(tokenizer.name_or_path),
        is_harmony=bool({tool_call_parser, reasoning_parser} & set(_HARMONY)),
        **versions.parser_options(tokenizer),
    )


def _request(tools: Schemas, variables: dict[str, Any] | None = None) -> Any:
    """The parts of a request that the parsers use."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    functions = [
        {"type": "function", "function": {"name": name, "parameters": dict(schema)}}
        for name, schema in tools.items()
    ]
    return ChatCompletionRequest(
        messages=[], tools=functions or None, chat_template_kwargs=variables
    )


def _keeps_special_tokens(parser_class: Any, tokenizer: Any) -> bool:
    request = _request({"any": {"type": "object"}})
    return not parser_class(tokenizer, request.tools).adjust_request(request).skip_special_tokens


class Pieces:
    """Cuts text independently of how it arrives: added tokens, words, and other characters."""

    def __init__(self, markers: Markers) -> None:
        self._markers = markers
        self._text = ""

    def is_marker(self, piece: str) -> bool:
        """Whether the piece is an added token."""
        return piece in self._markers.literals

    def feed(self, text: str) -> Iterator[str]:
        """The complete pieces; a word at the end may continue."""
        self._text += text
        return self._cut(ended=False)

    def finish(self) -> Iterator[str]:
        """The rest."""
        return self._cut(ended=True)

    def _cut(self, *, ended: bool) -> Iterator[str]:
        text, at = self._text, 0
        try:
            while at < len(text):
                end, marker = self._markers.find(text, at, ended)
                for found in _PLAIN.finditer(text, at, end):
                    if (
                        found.end() == end
                        and not marker
                        and not ended
                        and _may_continue(text, found)
                    ):
                        return
                    at = found.end()
                    yield found.group()
                if not marker:
                    return
                at += len(marker)
                yield marker
        finally:
            self._text = text[at:]


def _may_continue(text: str, found: re.Match[str]) -> bool:
    """Whether the word may continue after what is known."""
    after = text[found.end() : found.end() + 1]
    is_word = len(found.group()) < _WORD and re.match(r"\w", found.group()) is not None
    return is_word and (not after or re.match(r"\w", after) is not None)


class VLLMParser:
    """Implements `parsing.parser.Parser` with vLLM's parser, or without one."""

    def __init__(
        self,
        parser: Any,  # None: everything is content
        request: Any,
        pieces: Pieces,
        encode: Callable[[str], Sequence[int]],
        prompt_ids: Sequence[int],
    ) -> None:
        self._parser = parser
        self._request = request
        self._pieces = pieces
        self._encode = encode
        self._prompt_ids: list[int] | None = list(prompt_ids)
        self._calls = _Calls()
        self._pending: list[str] | None = []  # the text before the first event; None after it
        reasons = parser is not None and parser.reasoning_parser is not None
        self.in_reasoning = reasons and not parser.is_reasoning_end(self._prompt_ids)

    def feed(self, text: str, token_ids: Sequence[int] = ()) -> list[Event]:
        """Ignores the token ids: they belong to other pieces."""
        if self._parser is None:
            return [ContentText(text)] if text else []
        return [event for piece in self._pieces.feed(text) for event in self._read(piece)]

    def finish(self) -> list[Event]:
        """Text that was held back, and the end of an open call."""
        if self._parser is None:
            return []
        *before, last = [*self._pieces.finish()] or [""]
        events = [event for piece in before for event in self._read(piece)]
        events += self._read(last, finished=True)
        tool_parser = self._parser.tool_parser
        rest = tool_parser.get_remaining_unstreamed_args() if tool_parser is not None else ""
        events += self._calls.finish(rest)
        return events + self._fallback_content()

    def _fallback_content(self) -> list[Event]:
        """Some of vLLM's parsers cannot stream and emit nothing: then the output is content."""
        pieces = self._pending or []
        if self._parser.tool_parser is None:
            pieces = [piece for piece in pieces if not self._pieces.is_marker(piece)]
        text = "".join(pieces)
        return [ContentText(text)] if text.strip() else []

    def _read(self, piece: str, *, finished: bool = False) -> list[Event]:
        prompt_ids, self._prompt_ids = self._prompt_ids, None
        ids = list(self._encode(piece))
        delta = self._parser.parse_delta(piece, ids, self._request, prompt_ids, finished=finished)
        if self._pending is not None:
            self._pending.append(piece)
        events = [] if delta is None else self._events(delta)
        if events:
            self._pending = None
            self.in_reasoning = isinstance(events[-1], ReasoningText)
        return events

    def _events(self, delta: Any) -> list[Event]:
        events: list[Event] = []
        if delta.reasoning:
            events.append(ReasoningText(delta.reasoning))
        if delta.content:
            events.append(ContentText(delta.content))
        for call in delta.tool_calls or ():
            events += self._calls.add(call)
        return events


class _Calls:
    """Converts pieces of calls to events: each call starts once and ends before the next starts."""

    def __init__(self) -> None:
        self._theirs: int | None = None  # vLLM's index of the open call
        self._count = 0
        self._arguments = ""

    def add(self, call: Any) -> list[Event]:
        """Add one piece. A name with a new index starts a call."""
        events: list[Event] = []
        function = call.function
        if function is not None and function.name and call.index != self._theirs:
            events += self._end()
            self._theirs = call.index
            events.append(ToolCallStart(self._count, call.id or openai_id("", 0), function.name))
        if function is not None and function.arguments and call.index == self._theirs:
            events += self._more(function.arguments)
        return events

    def finish(self, rest: str) -> list[Event]:
        """`rest`: arguments that vLLM has parsed but not emitted."""
        fits = self._theirs is not None and not _is_object(self._arguments)
        more = self._more(rest) if rest and fits and _is_object(self._arguments + rest) else []
        return more + self._end()

    def _more(self, text: str) -> list[Event]:
        self._arguments += text
        return [ToolCallArguments(self._count, text)]

    def _end(self) -> list[Event]:
        if self._theirs is None:
            return []
        events = [] if self._arguments else self._more("{}")
        events.append(ToolCallEnd(self._count, _is_object(self._arguments)))
        self._count += 1
        self._theirs, self._arguments = None, ""
        return events


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
