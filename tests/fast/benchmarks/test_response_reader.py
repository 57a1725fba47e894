import pytest

from benchmarks.response_reader import BadResponse, StreamReader, WholeReader

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


@pytest.mark.parametrize(("stream", "chunks", "tokens"), STREAMS.values(), ids=STREAMS.keys())
def test_chunks_and_tokens_are_counted_byte_by_byte(stream, chunks, tokens):
    """Pieces shorter than the searched markers are counted too."""

    reader = StreamReader()
    for byte in stream:
        reader.feed(bytes([byte]))

    assert (reader.chunks, reader.tokens, reader.finished) == (chunks, tokens, True)


def test_completions_text_has_another_name():
    """An empty text, as in the last frame, is not a chunk."""

    frames = (
        b'data: {"choices":[{"text":" token","finish_reason":null}]}\n\n',
        b'data: {"choices":[{"text":"","finish_reason":"length"}]}\n\n',
    )
    reader = StreamReader(b"text")
    reader.feed(chunked(*frames, DONE))

    assert (reader.chunks, reader.tokens, reader.finished) == (1, 1, True)


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


def test_comments_are_not_counted():
    """Some servers keep a connection alive with them."""

    reader = usage_reader()
    reader.feed(chunked(OPENING, b": still here\n\n", TOKEN, FINISH, USAGE, DONE))

    assert (reader.chunks, reader.finished) == (1, True)


def test_stream_ends_with_its_last_chunk():
    """[DONE] alone does not end a chunked body."""

    reader = usage_reader()
    reader.feed(chunked(*REAL, FINISH, USAGE, DONE).removesuffix(b"0\r\n\r\n"))
    assert not reader.finished
    reader.feed(b"0\r\n\r\n")
    assert reader.finished


@pytest.mark.parametrize(
    ("writes", "reason"),
    [
        ((*REAL, FINISH, DONE), "without usage"),
        ((*REAL, FINISH, USAGE, DONE, TOKEN), r"without \[DONE\]"),
        ((*REAL, FINISH, USAGE, DONE + b"data: {"), r"without \[DONE\]"),
        ((*REAL, b'data: {"error":{"message":"no"}}\n\n', DONE), "error within"),
    ],
)
def test_bad_stream_with_usage_fails_the_run(writes, reason):
    """Usage is required, nothing follows [DONE], and an error ends no stream properly."""

    with pytest.raises(BadResponse, match=reason):
        usage_reader().feed(chunked(*writes))


def test_empty_content_does_not_begin_a_stream():
    """The opening frame comes before any token, so it is not the first token."""

    reader = StreamReader()
    opening = chunked(OPENING)[: -len(b"0\r\n\r\n")]

    reader.feed(opening)
    assert not reader.began
    reader.feed(b"%x\r\n%s\r\n" % (len(TOKEN), TOKEN))
    assert reader.began


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}", "503"),
        (chunked(OPENING + TOKEN, b'data: {"error":{"message":"x"}}\n\n'), r"without \[DONE\]"),
        (chunked(OPENING, TOKEN + FINISH), r"without \[DONE\]"),
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


def test_complete_response_needs_a_finish_reason():
    """Without it the answer is truncated, whatever its length says."""

    with pytest.raises(BadResponse, match="with 0 b'\"finish_reason"):
        WholeReader(b'"finish_reason":"').feed(WHOLE)


def test_refusal_fails_the_run():
    """A 503 is fast but not an answer."""

    with pytest.raises(BadResponse, match="503"):
        WholeReader().feed(b"HTTP/1.1 503 Service Unavailable\r\n")


VECTORS = (
    b'{"data":[{"object":"embedding","embedding":[1,2]},{"object":"embedding","embedding":[3]}]}'
)


@pytest.mark.parametrize("cut", [20, VECTORS.index(b'mbedding":')])
def test_vectors_in_chunks_are_counted_at_every_split(cut):
    """A field may be cut by the marks of the chunked encoding."""

    data = chunked(VECTORS[:cut], VECTORS[cut:])
    for at in range(1, len(data)):
        reader = WholeReader(b'"embedding":', 2)
        reader.feed(data[:at])
        assert not reader.finished, at
        reader.feed(data[at:])
        assert reader.finished, at


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
