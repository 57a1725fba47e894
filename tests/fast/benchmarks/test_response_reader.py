import pytest

from benchmarks.response_reader import (
    MESSAGES_END,
    RESPONSES_END,
    BadResponse,
    StreamReader,
    WholeReader,
)

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
OPENING = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TOKEN = b'data: {"choices":[{"delta":{"content":" token"},"finish_reason":null}]}\n\n'
THREE = b'data: {"choices":[{"delta":{"content":" token token token"}}]}\n\n'
FINISH = b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\n'
LAST = b'data: {"choices":[{"delta":{"content":" token"},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"completion_tokens":5}}\n\n'
DONE = b"data: [DONE]\n\n"


def chunked(*writes: bytes) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(write), write) for write in writes)
    return HEAD + body + b"0\r\n\r\n"


STREAMS = {
    "each frame its own write": (chunked(OPENING, TOKEN, TOKEN, FINISH, DONE), 2, 2),
    "frames in one write": (chunked(OPENING + TOKEN, TOKEN, TOKEN + FINISH + DONE), 3, 3),
    "merged tokens": (chunked(OPENING + TOKEN, THREE, TOKEN, FINISH + DONE), 3, 5),
    "finish beside a token": (chunked(OPENING + TOKEN, THREE, LAST + USAGE + DONE), 3, 5),
}


@pytest.mark.parametrize(("stream", "chunks", "tokens"), STREAMS.values(), ids=STREAMS.keys())
def test_chunks_and_tokens_are_counted_at_every_split(stream, chunks, tokens):
    """However the network splits a stream, and the server its tokens into chunks."""

    for split in range(1, len(stream)):
        reader = StreamReader()
        reader.feed(stream[:split])
        assert not reader.finished
        reader.feed(stream[split:])
        counted = (reader.chunks, reader.tokens, reader.began, reader.finished)
        assert counted == (chunks, tokens, True, True), split


def usage_reader() -> StreamReader:
    return StreamReader(usage=True)


REAL = (OPENING, TOKEN, b'data: {"choices":[{"delta":{"content":"\\"content\\":\\"a"}}]}\n\n')


def test_tokens_by_usage_at_every_split():
    """Text is not known then, and text that looks like a field counts once."""

    stream = chunked(*REAL, FINISH, USAGE, DONE)
    for split in range(1, len(stream)):
        reader = usage_reader()
        reader.feed(stream[:split])
        reader.feed(stream[split:])
        assert (reader.chunks, reader.tokens, reader.finished) == (2, 5, True), split


@pytest.mark.parametrize(
    ("writes", "reason"),
    [
        ((*REAL, FINISH, DONE), "without usage"),
        ((*REAL, FINISH, USAGE, DONE, TOKEN), "breaks off"),
        ((*REAL, FINISH, USAGE, DONE + b"data: {"), "breaks off"),
        ((*REAL, b'data: {"error":{"message":"no"}}\n\n', DONE), "error within"),
    ],
)
def test_bad_stream_with_usage_fails_the_run(writes, reason):
    """Usage is required, nothing follows [DONE], and an error ends no stream properly."""

    with pytest.raises(BadResponse, match=reason):
        usage_reader().feed(chunked(*writes))


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}", "503"),
        (chunked(OPENING + TOKEN, b'data: {"error":{"message":"x"}}\n\n'), "breaks off"),
        (chunked(OPENING, TOKEN + FINISH), "breaks off"),
        (chunked(OPENING, TOKEN, DONE), "without finish reason"),
        (chunked(OPENING, FINISH + DONE), "without content"),
    ],
    ids=["not 200", "error event", "no [DONE]", "no finish reason", "no content"],
)
def test_bad_stream_fails_the_run(response, reason):
    """A failed stream must not count as a fast one."""

    with pytest.raises(BadResponse, match=reason):
        StreamReader().feed(response)


WHOLE = b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"a":"\r\n\r\n12"}'


def test_complete_response_ends_at_its_length():
    """However the network splits it in two, and byte by byte."""

    for split in range(1, len(WHOLE)):
        reader = WholeReader(b'"a":')
        reader.feed(WHOLE[:split])
        assert not reader.finished, split
        reader.feed(WHOLE[split:])
        assert reader.finished, split

    reader = WholeReader()
    for byte in WHOLE:
        assert not reader.finished
        reader.feed(bytes([byte]))
    assert reader.finished


def test_refusal_fails_the_run():
    """A 503 is fast but not an answer."""

    with pytest.raises(BadResponse, match="503"):
        WholeReader().feed(b"HTTP/1.1 503 Service Unavailable\r\n")


VECTORS = (
    b'{"data":[{"object":"embedding","embedding":[1,2]},{"object":"embedding","embedding":[3]}]}'
)


@pytest.mark.parametrize(
    "data",
    [
        chunked(VECTORS),
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(VECTORS), VECTORS),
    ],
)
def test_wrong_number_of_vectors_fails_the_run(data):
    """Two vectors do not answer three texts."""

    with pytest.raises(BadResponse, match="2 b'\"embedding\":', not 3"):
        WholeReader(b'"embedding":', 3).feed(data)


API_STREAMS = {
    "responses": (
        [
            b'data: {"type":"response.created","response":{"output":[],"usage":null}}\n\n',
            b'data: {"type":"response.output_text.delta","delta":" token"}\n\n',
            b'data: {"type":"response.output_text.delta","delta":" token"}\n\n',
            b'data: {"type":"response.output_text.done","text":" token token"}\n\n'
            b'data: {"type":"response.completed","response":{"output":[{"text":" token token"}],'
            b'"usage":{"output_tokens":2,"output_tokens_details":{}}}}\n\n',
        ],
        StreamReader(b"delta", usage=True, end=RESPONSES_END),
    ),
    "messages": (
        [
            b'data: {"type":"message_start","message":{"usage":{"output_tokens":0}}}\n\n'
            b'data: {"type":"content_block_start","content_block":{"type":"text","text":""}}\n\n',
            b'data: {"type":"content_block_delta","delta":{"text":" token"}}\n\n',
            b'data: {"type":"content_block_delta","delta":{"text":" token"}}\n\n',
            b'data: {"type":"message_delta","usage":{"output_tokens":2}}\n\n'
            b'data: {"type":"message_stop"}\n\n',
        ],
        StreamReader(b"text", usage=True, end=MESSAGES_END),
    ),
}


@pytest.mark.parametrize(("writes", "reader"), API_STREAMS.values(), ids=API_STREAMS.keys())
def test_streams_of_other_apis(writes, reader):
    """The repeated text counts for nothing: tokens are those of the usage at the end."""
    for piece in chunked(*writes):
        reader.feed(bytes([piece]))

    assert (reader.chunks, reader.tokens, reader.finished) == (2, 2, True)
