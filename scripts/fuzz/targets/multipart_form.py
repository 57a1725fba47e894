"""The form of an audio route: its fields and file, or a 400, wherever the body is split."""

from typing import Any

from openai_frontend.routers.multipart import (
    MAX_FIELD_BYTES,
    MAX_FIELDS,
    Form,
    FormParser,
    file_of,
)
from openai_frontend.serving.request.request_body import FormReader
from schemas.audio import TranscriptionRequest
from scripts.fuzz.draw import Draw, pieces
from scripts.fuzz.outcome import outcome
from tests import audio

READER = FormReader(TranscriptionRequest)
WORDS = (
    f"--{audio.BOUNDARY}", "--", "\r\n", "\r\n\r\n", "Content-Disposition: form-data; ", "name=",
    '"file"', "filename=", "filename*=UTF-8''", "Content-Type: ", "[]", "[type]",
    "timestamp_granularities[]", "include[]", "stream", "true", "temperature", "1e999",
)  # fmt: skip
SEEDS = tuple(
    b"\x03" + body
    for body in (
        audio.form(b"RIFF", ("model", "a")),
        audio.form(b"", ("timestamp_granularities[]", "segment"), ("stream", "true")),
        audio.form(None, ("chunking_strategy[type]", "server_vad"), ("temperature", "0.5")),
        audio.form(b"x")[:-4],
    )
)


def check(data: bytes) -> None:
    draw = Draw(data)
    seed, body = draw.byte(), draw.rest()
    whole = outcome(lambda: _parsed([body]), data)
    split = outcome(lambda: _parsed(pieces(body, seed)), data)
    # The parser takes some bodies without a boundary at their start only in one piece
    if body.startswith(f"--{audio.BOUNDARY}".encode()):
        assert whole[0] == split[0], (whole, split)
        assert whole == split or whole[0] == "refusal"
    for kind, form in (whole, split):
        if kind == "value":
            _check_form(form, data)


def _parsed(parts: list[bytes]) -> Form:
    parser = FormParser(audio.BOUNDARY.encode())
    for part in parts:
        parser.feed(part)
    return parser.finish()


def _check_form(form: Form, data: bytes) -> None:
    assert len(form.fields) <= MAX_FIELDS
    for value in form.fields.values():
        values = value if isinstance(value, list) else [value]
        assert all(len(each.encode()) <= MAX_FIELD_BYTES + len(data) for each in values)
    if form.file is not None:
        assert form.file in data
    read: tuple[str, Any] = outcome(lambda: (file_of(form), READER.read(form.fields)), data)
    assert read[0] in ("value", "refusal")
