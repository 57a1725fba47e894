"""Frames of server-sent event streams. No other module builds them. No I/O.

The constant parts of a frame are rendered once per stream and choice, so a token costs one
`orjson.dumps` of its text: 0.5 us, not the 12.7 us of building and dumping the schema's model.
`tests/medium/test_sse.py` proves that the bytes equal the schema's own dump.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orjson import Fragment, dumps

Logprobs = Mapping[str, Any] | Fragment

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"  # a comment, so that proxies do not close an idle stream

# Padding makes a frame's length exceed that of an empty one by a multiple of this many bytes.
_PADDED_TO = 32

TEXT = "\0"  # placeholder of a delta's text in a frame that is split there
_JSON_TEXT = dumps(TEXT)

_NO_REASON = b',"logprobs":null,"finish_reason":null}]'


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """The JSON of one choice in a chunk: around its text, in its first and in its last frame."""

    object: str
    before_text: bytes
    after_text: bytes
    opening: bytes | None  # the first frame of a choice; None: it has no such frame
    opening_of_calls: bytes | None  # the same if the output may be calls without text
    ending: bytes  # replaces the text next to a finish reason


CHAT_COMPLETION_CHUNK = ChunkShape(
    object="chat.completion.chunk",
    before_text=b'"delta":{"content":',
    after_text=b"}",
    opening=b'"delta":{"role":"assistant","content":""}',
    opening_of_calls=b'"delta":{"role":"assistant","content":null}',
    ending=b'"delta":{}',
)
COMPLETION_CHUNK = ChunkShape(
    object="text_completion",
    before_text=b'"text":',
    after_text=b"",
    opening=None,
    opening_of_calls=None,
    ending=b'"text":""',
)


class ChunkFrames:
    """Builds the frames of one stream, with the same id, time and model in each."""

    def __init__(
        self,
        shape: ChunkShape,
        fields: Mapping[str, Any],
        *,
        choices: int,
        usage_field: bool,
        obfuscate: bool = False,
    ) -> None:
        """`fields` are in every chunk: id, created, model, system_fingerprint.

        `usage_field` adds `"usage":null` to every chunk, as `include_usage` requires; `obfuscate`
        pads every chunk.
        """
        self._shape = shape
        self._obfuscate = obfuscate
        first = {"id": fields["id"], "object": shape.object}
        self._head = b"data: " + dumps({**first, **fields})[:-1] + b',"choices":['
        self._heads = [b'%s{"index":%d,' % (self._head, index) for index in range(choices)]
        self._before_text = [head + shape.before_text for head in self._heads]
        self._end_with(b',"usage":null}\n\n' if usage_field else b"}\n\n")

    def _end_with(self, end: bytes) -> None:
        self._end = end
        self._after_text = self._shape.after_text + _NO_REASON + end

    def usage_so_far(self, usage: Mapping[str, Any]) -> None:
        """Add these counts to every frame from now on."""
        self._end_with(b',"usage":%s}\n\n' % dumps(usage))

    def opening(
        self, prompts: Sequence[Mapping[str, Any]] = (), *, may_call: bool = False
    ) -> bytes:
        """The first frame of every choice, in ascending order: clients append them to a list.

        `may_call` sets the content to null, as some clients show an empty text before a call.
        `prompts` has additional fields for each choice's frame (vLLM's `prompt_token_ids`).
        """
        opening = self._shape.opening_of_calls if may_call else self._shape.opening
        if opening is None:
            return b""
        tops = [_field_bytes(fields) for fields in prompts] or [b""] * len(self._heads)
        return b"".join(
            [
                head + opening + _NO_REASON + top + self._padding(0) + self._end
                for head, top in zip(self._heads, tops, strict=True)
            ]
        )

    def text(self, index: int, text: str) -> bytes:
        """A frame that adds text to a choice."""
        return self._before_text[index] + dumps(text) + self._after_text

    def around_text(self, index: int) -> tuple[bytes, bytes]:
        """The bytes before and after the JSON string in a frame of `text`."""
        return self._before_text[index], self._after_text

    def around_logprobs(self, index: int) -> tuple[bytes, bytes, bytes]:
        """The bytes before, between and after the text and the tokens in a frame of `detailed`
        with a chat's log probabilities. Only for streams without padding.
        """
        between = self._shape.after_text + b',"logprobs":{"content":['
        after = b'],"refusal":null},"finish_reason":null}]' + self._end
        return self._before_text[index], between, after

    def detailed(
        self,
        index: int,
        text: str,
        logprobs: Logprobs | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> bytes:
        """A frame that adds text with log probabilities or other fields to a choice."""
        written = dumps(text)
        return b'%s%s%s,"logprobs":%s,"finish_reason":null%s}]%s%s' % (
            self._before_text[index],
            written,
            self._shape.after_text,
            b"null" if logprobs is None else dumps(logprobs),
            _field_bytes(fields or {}),
            self._padding(len(written)),
            self._end,
        )

    def delta(
        self,
        index: int,
        delta: Mapping[str, Any],
        logprobs: Logprobs | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> bytes:
        """A frame that adds a delta other than text to a chat choice."""
        written = dumps(delta)
        return b'%s"delta":%s,"logprobs":%s,"finish_reason":null%s}]%s%s' % (
            self._heads[index],
            written,
            b"null" if logprobs is None else dumps(logprobs),
            _field_bytes(fields or {}),
            self._padding(len(written)),
            self._end,
        )

    def around_delta(self, index: int, delta: Mapping[str, Any]) -> list[bytes]:
        """The constant parts of frames of `delta`, between which the text of `TEXT` belongs as a
        JSON string. Only for streams without padding.
        """
        first, *parts = dumps(delta).split(_JSON_TEXT)
        *parts, last = parts or [b""]
        before = b'%s"delta":%s' % (self._heads[index], first)
        return [before, *parts, last + _NO_REASON + self._end]

    def finish(self, index: int, reason: str) -> bytes:
        """The last frame of a choice, without text: some clients stop reading at the reason."""
        start = self._heads[index] + self._shape.ending
        end = self._padding(0) + self._end
        return b'%s,"logprobs":null,"finish_reason":%s}]%s' % (start, dumps(reason), end)

    def usage(self, usage: Mapping[str, Any]) -> bytes:
        """The frame with the counts and without choices, just before [DONE]."""
        return self.without_choices({"usage": usage})

    def without_choices(self, fields: Mapping[str, Any]) -> bytes:
        """A frame with these fields instead of choices."""
        return b"%s]%s}\n\n" % (self._head, _field_bytes(fields))

    def _padding(self, length: int) -> bytes:
        """Pad a text of `length` bytes, so that the frame's size does not reveal its token."""
        if not self._obfuscate:
            return b""
        pad = secrets.token_hex(_PADDED_TO)[: _PADDED_TO - length % _PADDED_TO]
        return b',"obfuscation":"%s"' % pad.encode()


def _field_bytes(fields: Mapping[str, Any]) -> bytes:
    """Members to append to a JSON object that is not empty."""
    return b"," + dumps(fields)[1:-1] if fields else b""


def event(document: bytes) -> bytes:
    """An event with a JSON document, for streams that are not chunks of choices."""
    return b"data: %s\n\n" % document


def named_event(name: str, document: bytes) -> bytes:
    """An event with a name, for clients that select events by it."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), document)


def error_event(body: bytes) -> bytes:
    """The last event of a failed stream; `body` is the JSON of the error envelope."""
    return event(body)
