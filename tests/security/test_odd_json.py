"""JSON that parsers read differently: NaN, lone surrogates, byte order marks, huge numbers,
duplicate keys.

tests/api/routers/test_refusals.py tests one chat endpoint; these tests cover every endpoint.
"""

import json

import orjson
import pytest

from tests.security.guarded import CHAT, ODD_ANSWERS, REQUIRED, check_refused

ODD = {
    "NaN": b"NaN",
    "Infinity": b"-Infinity",
    "infinite": b"1e999",
    "long integer": b"9" * 5000,
    "long fraction": b"0." + b"1" * 100_000 + b"e400",
    "lone surrogate": rb'"\ud800"',
    "reversed surrogates": rb'"\udc00\ud800"',
    "no UTF-8": b'"\xff"',
    "overlong UTF-8": b'"\xc0\xaf"',
    "encoded surrogate": b'"\xed\xa0\x80"',
    "NUL": b'"\x00"',
    "raw newline": b'"\n"',
    "single quotes": b"'a'",
    "hex": b"0x10",
    "plus": b"+1",
    "comment": b"1/*x*/",
    "trailing comma": b"[1,]",
    "bare word": b"undefined",
}
VALID_TEXT = [rb'"\u0000"', rb'"\ud83d\ude42"', b'"\xe2\x80\xa8"', b'"\xef\xbf\xbd"']


@pytest.mark.parametrize("name", ODD)
def test_invalid_json_values_get_400_in_any_field(guarded, name):
    """On every endpoint that reads JSON."""
    for path in REQUIRED:
        required = json.dumps(REQUIRED[path]).encode()

        response = guarded.post(path, required[:-1] + b', "user": ' + ODD[name] + b"}")

        check_refused(response, 400)


@pytest.mark.parametrize(
    "start", [b"\xef\xbb\xbf" * 2, b"\xff\xfe", b"\x00", b"\x1f\x8b"], ids=repr
)
def test_bytes_before_the_body_get_400(guarded, start):
    """Only a single UTF-8 byte order mark is allowed."""
    for path in REQUIRED:
        check_refused(guarded.post(path, start + json.dumps(REQUIRED[path]).encode()))


@pytest.mark.parametrize("text", VALID_TEXT, ids=repr)
def test_valid_but_unusual_text_is_accepted(guarded, text):
    """The text passes through the tokenizer and back."""
    body = b'{"model": "mock", "messages": [{"role": "user", "content": %s}]}' % text

    assert guarded.post(CHAT, body).status == 200


@pytest.mark.parametrize("text", VALID_TEXT, ids=repr)
def test_tokenize_and_detokenize_return_the_same_text(guarded, text):
    body = b'{"model": "mock", "add_special_tokens": false, "prompt": %s}' % text
    tokens = orjson.loads(guarded.post("/tokenize", body).body)["tokens"]

    answer = guarded.post("/detokenize", {"tokens": tokens})

    assert orjson.loads(answer.body)["prompt"] == json.loads(text)


def test_the_last_of_two_duplicate_keys_counts(guarded):
    """Authorization, routing and the model all read the last value."""
    body = b'{"model": "nobody", "messages": [{"role": "user", "content": "hi"}], "model": "mock"}'

    assert guarded.post(CHAT, body).status == 200


@pytest.mark.parametrize("name", ODD_ANSWERS)
@pytest.mark.parametrize("stream", [False, True])
def test_any_model_output_becomes_valid_json(guarded, name, stream):
    """Even if the model writes malformed text, the answer is valid and the stream is complete."""
    response = guarded.post(CHAT, {"model": name, "stream": stream})

    assert response.status == 200
    frames = [response.body]
    if stream:
        lines = unchunked(response.body).split(b"\n\n")
        assert lines[-2:] == [b"data: [DONE]", b""]
        frames = [line.removeprefix(b"data: ") for line in lines[:-2]]
    for frame in frames:
        assert "error" not in orjson.loads(frame)


def unchunked(body: bytes) -> bytes:
    """Return the content of a chunked body."""
    whole = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        whole, body = whole + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return whole
