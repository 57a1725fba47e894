"""The harmony format of gpt-oss: all output is messages, each with a channel and optionally a
recipient. The analysis channel is reasoning; a message to a function is a call.
"""

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial

from openai_frontend.parsing.buffer import Cursor, Markers, NotToolCall
from openai_frontend.parsing.events import ContentText, EventBuffer, ReasoningText, is_name
from openai_frontend.parsing.family import Family
from openai_frontend.parsing.values import ValueReader

_START, _CHANNEL, _CONSTRAIN = "<|start|>", "<|channel|>", "<|constrain|>"
_HEADER_END = Markers("<|message|>")
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_BODY_ENDS = Markers(*_ENDS, _START, _CHANNEL)
_MAX_HEADER = 512
_FUNCTIONS = "functions."


@dataclass(frozen=True, slots=True, kw_only=True)
class Harmony:
    """No options: there is only one harmony."""

    summary: str
    starts: tuple[str, ...] = (_START, _CHANNEL)
    ends: tuple[str, ...] = _ENDS
    bare_starts: tuple[str, ...] = ()
    line_starts: tuple[str, ...] = ()
    frames_output: bool = True

    def read(self, cursor: Cursor, output: EventBuffer, start: str) -> Generator[None, None, None]:
        """Parses one message."""
        header, end = yield from cursor.until(_HEADER_END, _MAX_HEADER)
        cursor.take(len(header) + len(end))
        words = _words(start + header)
        recipient = next((word[3:] for word in words if word.startswith("to=")), "").strip()
        name = recipient.removeprefix(_FUNCTIONS)
        if output.schemas and (recipient != name or name in output.schemas):
            yield from _call(cursor, output, name)
        else:
            cursor.forget()
            output.marker()
            kind = ReasoningText if _channel(words) == "analysis" else ContentText
            yield from _text(cursor, output, kind)


def _words(header: str) -> list[str]:
    """The words of the last header: a model may end a message within its header."""
    _, _, header = header.rpartition(_START)
    return header.replace(_CONSTRAIN, " ").replace(_CHANNEL, " \n ").split(" ")


def _channel(words: list[str]) -> str:
    """The word after the channel marker, which is replaced by a line break."""
    after = words[words.index("\n") + 1 :] if "\n" in words else []
    return next((word for word in after if word), "")


def _text(
    cursor: Cursor, output: EventBuffer, kind: type[ContentText] | type[ReasoningText]
) -> Generator[None, None, None]:
    output.in_reasoning = kind is ReasoningText
    end = yield from output.text_until(
        partial(cursor.before, _BODY_ENDS), _BODY_ENDS.literals, kind
    )
    output.in_reasoning = False
    if end in _ENDS:
        cursor.take(len(end))
    if end:
        output.marker()


def _call(cursor: Cursor, output: EventBuffer, name: str) -> Generator[None, None, None]:
    yield from cursor.skip_space()
    first = yield from cursor.peek()
    without_arguments = bool((yield from cursor.accept(*_ENDS)))
    if first == "" and not cursor.truncated:  # the engine leaves out the token that ends a turn
        without_arguments = True
    if not is_name(name) or not (without_arguments or first in ("", "{")):
        raise NotToolCall
    output.begin(name)
    cursor.forget()
    if first == "{":
        yield from output.json_arguments(ValueReader(cursor, output.arguments))
    elif without_arguments:
        output.arguments("{}")
    output.end(complete=first == "{" or without_arguments)
    cursor.record()
    yield from cursor.skip_space()
    if (yield from cursor.accept(*_ENDS)):
        cursor.record()


GPT_OSS = Family(
    name="gpt_oss",
    models="gpt-oss 20B and 120B",
    tools=Harmony(
        summary="`<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
        '{"a": 1}<|call|>`'
    ),
    reasoning_summary="`<|channel|>analysis<|message|>...<|end|>`",
    special_tokens=True,
    signs=(("<|channel|>", "<|message|>"),),
    model_types=("gpt_oss",),
    aliases=("harmony", "openai"),
)
