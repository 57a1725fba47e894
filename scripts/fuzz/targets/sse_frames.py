"""Frames of a stream.

Whatever the text, and however the network splits the frames, OpenAI's client reads one event per
frame, and the event contains the text.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from openai._streaming import SSEDecoder

from openai_frontend.sse import CHAT_COMPLETION_CHUNK, COMPLETION_CHUNK, DONE, ChunkFrames
from scripts.fuzz.draw import Draw, pieces

FIELDS = {"id": "chatcmpl-1", "created": 1, "model": "a", "system_fingerprint": None}

WORDS = ("\n", "\r\n\r\n", "data: [DONE]\n\n", '"}', "\\", "\u2028", "\x00", "event: ", ": ")
SEEDS = (b"\x00\x01hello\nworld", b"\x01\x02\xf0\x9f\x99\x82 data: [DONE]\n\n", b"\x07\x03\r\n\r")


def check(data: bytes) -> None:
    draw = Draw(data)
    flags, seed = draw.byte(), draw.byte()
    chat, obfuscate, usage = bool(flags & 1), bool(flags & 2), bool(flags & 4)
    shape = CHAT_COMPLETION_CHUNK if chat else COMPLETION_CHUNK
    frames = ChunkFrames(shape, FIELDS, choices=2, usage_field=usage, obfuscate=obfuscate)
    texts = [part.decode(errors="replace") for part in pieces(draw.rest(), seed)]

    written = b"".join(_written(frames, texts, detailed=bool(flags & 8)))
    events = list(_events(pieces(written, seed + 1)))

    assert events == list(_events([written]))
    assert events[-1] == "[DONE]"
    chunks = [orjson.loads(event) for event in events[:-1]]
    told = [_text(chunk["choices"][0], chat=chat) for chunk in chunks]
    assert told == texts
    assert all(chunk["choices"][0]["index"] == 1 for chunk in chunks)


def _written(frames: ChunkFrames, texts: list[str], *, detailed: bool) -> Iterator[bytes]:
    for text in texts:
        yield frames.detailed(1, text, fields={"b": text}) if detailed else frames.text(1, text)
    before, after = frames.around_text(1)
    assert (
        detailed or not texts or frames.text(1, texts[0]) == before + orjson.dumps(texts[0]) + after
    )
    yield DONE


def _events(reads: list[bytes]) -> Iterator[str]:
    for event in SSEDecoder().iter_bytes(iter(reads)):
        assert event.event is None
        yield event.data


def _text(choice: Mapping[str, Any], *, chat: bool) -> str:
    text: str = choice["delta"]["content"] if chat else choice["text"]
    return text
