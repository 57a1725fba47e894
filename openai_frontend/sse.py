"""The bytes of an event stream; nothing else in the project knows them. Never does I/O.

All of a frame that does not change is rendered once per stream and choice, so a token costs one
`orjson.dumps` of its text: 0.5 us against 12.7 us for building and dumping the schema's model.
`tests/test_sse.py` proves that the bytes are those of the schema's own dump.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orjson import dumps

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"  # a comment: no event, for proxies that end what is silent

# A padded frame is a multiple of this many bytes longer than one without text.
_PADDED_TO = 32

_NO_REASON = b',"logprobs":null,"finish_reason":null}]'


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """How a kind of chunk writes one choice: around its text, at its start, at its end."""

    object: str
    before_text: bytes
    after_text: bytes
    opening: bytes | None  # what the first frame of a choice holds; None: there is no such frame
    opening_of_calls: bytes | None  # the same for an answer that may be calls without any text
    ending: bytes  # what stands in place of text beside a finish reason


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
    """The frames of one stream: the same id, time and model in each."""

    def __init__(
        self,
        shape: ChunkShape,
        fields: Mapping[str, Any],
        *,
        choices: int,
        usage_field: bool,
        obfuscate: bool = False,
    ) -> None:
        """`fields` stand in every chunk: id, created, model, system_fingerprint.

        `usage_field` puts `"usage":null` on every chunk, as `include_usage` asks; `obfuscate` pads
        every chunk.
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
        """From here on every frame carries these counts."""
        self._end_with(b',"usage":%s}\n\n' % dumps(usage))

    def opening(
        self, prompts: Sequence[Mapping[str, Any]] = (), *, may_call: bool = False
    ) -> bytes:
        """The first frame of every choice, in ascending order: clients put them in a list.

        `may_call` leaves the content open, for clients that show an empty text before a call.
        `prompts` has fields for the top of each choice's frame (vLLM's `prompt_token_ids`).
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
        """What stands before and after the JSON string of a frame that `text` makes."""
        return self._before_text[index], self._after_text

    def detailed(
        self,
        index: int,
        text: str,
        logprobs: Mapping[str, Any] | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> bytes:
        """A frame that adds text with log probabilities or other fields of the choice's."""
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
        logprobs: Mapping[str, Any] | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> bytes:
        """A frame that adds something other than text to a choice of a chat."""
        written = dumps(delta)
        return b'%s"delta":%s,"logprobs":%s,"finish_reason":null%s}]%s%s' % (
            self._heads[index],
            written,
            b"null" if logprobs is None else dumps(logprobs),
            _field_bytes(fields or {}),
            self._padding(len(written)),
            self._end,
        )

    def finish(self, index: int, reason: str) -> bytes:
        """The last frame of a choice; without text, for some clients stop reading at the reason."""
        start = self._heads[index] + self._shape.ending
        end = self._padding(0) + self._end
        return b'%s,"logprobs":null,"finish_reason":%s}]%s' % (start, dumps(reason), end)

    def usage(self, usage: Mapping[str, Any]) -> bytes:
        """The frame without choices that carries the counts; only [DONE] follows it."""
        return b'%s],"usage":%s}\n\n' % (self._head, dumps(usage))

    def _padding(self, length: int) -> bytes:
        """Fills a text of so many bytes up, so that a frame's size does not tell its token."""
        if not self._obfuscate:
            return b""
        pad = secrets.token_hex(_PADDED_TO)[: _PADDED_TO - length % _PADDED_TO]
        return b',"obfuscation":"%s"' % pad.encode()


def _field_bytes(fields: Mapping[str, Any]) -> bytes:
    """Members that go on an object which has some already."""
    return b"," + dumps(fields)[1:-1] if fields else b""


def event(document: bytes) -> bytes:
    """An event that holds a JSON document, of streams that are no choices' chunks."""
    return b"data: %s\n\n" % document


def error_event(body: bytes) -> bytes:
    """The event that ends a stream that failed; `body` is the error envelope's JSON."""
    return event(body)
