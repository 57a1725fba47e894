import pytest

from benchmarks.response_reader import BadResponse, StreamReader, WholeReader

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
OPENING = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TOKEN = b'data: {"choices":[{"delta":{"content":" a"}}]}\n\n'
FINISH = b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def chunked(*writes: bytes) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(write), write) for write in writes)
    return HEAD + body + b"0\r\n\r\n"


STREAM = chunked(OPENING + TOKEN, TOKEN, TOKEN + FINISH + DONE)


def test_frames_are_counted_at_every_split():
    """However the network cuts a stream in two, it has the same frames and ends once."""

    for split in range(1, len(STREAM)):
        reader = StreamReader()
        reader.feed(STREAM[:split])
        assert not reader.finished
        reader.feed(STREAM[split:])
        assert (reader.frames, reader.began, reader.finished) == (6, True, True), split


def test_frames_are_counted_byte_by_byte():
    """Pieces smaller than what is looked for hide nothing."""

    reader = StreamReader()
    for byte in STREAM:
        reader.feed(bytes([byte]))

    assert (reader.frames, reader.finished) == (6, True)


def test_an_empty_content_does_not_begin_a_stream():
    """The opening frame comes before any token, so it is no first token."""

    reader = StreamReader()
    opening = chunked(OPENING)[: -len(b"0\r\n\r\n")]

    reader.feed(opening)
    assert not reader.began
    reader.feed(b"%x\r\n%s\r\n" % (len(TOKEN), TOKEN))
    assert reader.began


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}",
        chunked(OPENING + TOKEN, b'data: {"error":{"message":"x"}}\n\n'),
        chunked(OPENING, TOKEN + FINISH),
        chunked(OPENING, FINISH + DONE),
    ],
    ids=["not 200", "error event", "no [DONE]", "no content"],
)
def test_a_bad_stream_fails_the_run(response):
    """A stream that failed must not count as a fast one."""

    with pytest.raises(BadResponse):
        StreamReader().feed(response)


WHOLE = b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"a":"\r\n\r\n12"}'


def test_a_whole_response_ends_at_its_length():
    """However the network cuts it in two."""

    for split in range(1, len(WHOLE)):
        reader = WholeReader()
        reader.feed(WHOLE[:split])
        assert not reader.finished, split
        reader.feed(WHOLE[split:])
        assert reader.finished, split


def test_a_refusal_fails_the_run():
    """A 503 is quickly made and no answer."""

    with pytest.raises(BadResponse, match="503"):
        WholeReader().feed(b"HTTP/1.1 503 Service Unavailable\r\n")
