"""A form has the same fields and the same file, wherever its body is split."""

import gc
from weakref import ref

import pytest
from fastapi import Request

from openai_frontend.errors import InvalidRequest
from openai_frontend.routers.multipart import Form, FormParser, read_form
from tests import audio

FILE = bytes(range(256)) + f"\r\n--{audio.BOUNDARY[:-1]}".encode()
BODY = audio.form(
    FILE,
    ("model", "a"),
    ("include[]", "logprobs"),
    ("timestamp_granularities[]", "segment"),
    ("timestamp_granularities[]", "word"),
    ("chunking_strategy[type]", "server_vad"),
    ("prompt", "Zoë"),
)
EXPECTED = Form(
    fields={
        "model": "a",
        "include": ["logprobs"],
        "timestamp_granularities": ["segment", "word"],
        "chunking_strategy": ["chunking_strategy[type]=server_vad"],
        "prompt": "Zoë",
    },
    file=FILE,
)


def parsed(*pieces: bytes) -> Form:
    parser = FormParser(audio.BOUNDARY.encode())
    for piece in pieces:
        parser.feed(piece)
    return parser.finish()


def test_form_is_the_same_at_every_split():
    assert parsed(BODY) == EXPECTED
    for at in range(1, len(BODY)):
        assert parsed(BODY[:at], BODY[at:]) == EXPECTED
    assert parsed(*(BODY[at : at + 1] for at in range(len(BODY)))) == EXPECTED


def test_form_that_ends_early_is_refused_at_every_length():
    for at in range(len(BODY) - 4):
        with pytest.raises(InvalidRequest) as refused:
            parsed(BODY[:at])
        assert refused.value.code == "invalid_form"


@pytest.mark.parametrize("fields", [[("model", "a"), ("model", "b")], [("a", "1"), ("a[]", "2")]])
def test_field_that_is_sent_twice_is_refused_by_name(fields):
    with pytest.raises(InvalidRequest, match="sent twice") as refused:
        parsed(audio.form(b"", *fields))
    assert refused.value.param == fields[0][0]


async def test_long_boundary_is_refused():
    """Before the body is read; how long it may be depends on python-multipart's version."""
    kind = f"multipart/form-data; boundary={'a' * 257}"
    request = Request({"type": "http", "headers": [(b"content-type", kind.encode())]})
    with pytest.raises(InvalidRequest, match="boundary has more than 256 bytes"):
        await read_form(request)


def test_closed_parser_is_freed_without_a_collection():
    """With its file, which has megabytes."""
    gc.disable()
    try:
        parser = FormParser(audio.BOUNDARY.encode())
        parser.feed(BODY)
        parser.close()
        freed = ref(parser)
        del parser
        assert freed() is None
    finally:
        gc.enable()
