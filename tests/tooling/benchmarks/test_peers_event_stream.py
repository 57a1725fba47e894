import json

import pytest

from benchmarks.peers.event_stream import BadResponse, StreamReader
from benchmarks.peers.vectors import VectorReader

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
OPENING = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
FINISH = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}}


def content(text: str) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}


def frame(value: object) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))


WHOLE = [OPENING, content("a"), content('"content":"no"'), content("b"), FINISH, USAGE, "[DONE]"]


def answer(*values: object) -> bytes:
    return HEAD + chunked(*map(frame, values))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
def test_answer_is_the_same_in_any_pieces(size):
    """Headers, chunks and frames may be cut anywhere."""

    data, reader = answer(*WHOLE), StreamReader()
    chunks = sum(reader.feed(data[at : at + size]) for at in range(0, len(data), size))

    assert (chunks, reader.chunks, reader.tokens, reader.finished) == (3, 3, 4, True)


def test_answer_is_the_same_at_every_split_into_two():
    """The frame with the split counts once, with the second piece."""

    data = answer(*WHOLE)
    for at in range(1, len(data)):
        reader = StreamReader()
        assert reader.feed(data[:at]) + reader.feed(data[at:]) == 3
        assert reader.finished


def test_frames_need_not_match_chunks():
    """One frame over two HTTP chunks, two frames in one."""

    frames = b"".join(map(frame, WHOLE))
    reader = StreamReader()

    assert reader.feed(HEAD + chunked(frames[:90], frames[90:])) == 3
    assert reader.finished


def test_answer_ends_with_its_last_chunk():
    """[DONE] alone does not end a chunked body."""

    reader = StreamReader()
    reader.feed(answer(*WHOLE).removesuffix(b"0\r\n\r\n"))
    assert not reader.finished
    reader.feed(b"0\r\n\r\n")
    assert reader.finished


def test_comments_and_empty_content_are_not_counted():
    """Keep-alive comments and a stream's opening have no token."""

    reader = StreamReader()
    frames = [frame(OPENING), b": still here\n\n", *map(frame, [content("a"), FINISH, USAGE])]

    assert reader.feed(HEAD + chunked(*frames, frame("[DONE]"))) == 1


@pytest.mark.parametrize(
    ("left_out", "named"),
    [(FINISH, "finish reason"), (USAGE, "usage"), ("[DONE]", r"\[DONE\]")],
)
def test_incomplete_answer_fails(left_out, named):
    """Finish reason, usage and [DONE] are all required."""

    data = answer(*(each for each in WHOLE if each != left_out))
    with pytest.raises(BadResponse, match=f"without: {named}$"):
        StreamReader().feed(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy", "503"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "chunked"),
        (answer(OPENING, {"error": {"message": "no"}}), "error within"),
        (answer(*WHOLE, content("c")), "after"),
        (answer(OPENING, FINISH, USAGE, "[DONE]"), "without: content$"),
        (HEAD + chunked(*map(frame, WHOLE), b"data: {"), "without: last frame whole$"),
        (HEAD + b"2\r\nabcd\r\n", "longer than it says"),
    ],
)
def test_bad_answer_fails(data, message):
    """Each error says what is wrong with the answer."""

    with pytest.raises(BadResponse, match=message):
        StreamReader().feed(data)


VECTORS = (
    b'{"data":[{"object":"embedding","embedding":[1,2]},{"object":"embedding","embedding":[3]}]}'
)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(VECTORS), VECTORS),
        HEAD + chunked(VECTORS[:20], VECTORS[20:]),
    ],
)
def test_vectors_are_counted_when_the_answer_is_complete(data):
    """By its length or its last chunk, in any two pieces."""

    for at in range(1, len(data)):
        reader = VectorReader(2)
        assert reader.feed(data[:at]) == 0
        assert not reader.finished
        assert reader.feed(data[at:]) == 1
        assert reader.finished


def test_wrong_number_of_vectors_fails():
    """Two vectors do not answer three texts."""

    data = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(VECTORS), VECTORS)
    with pytest.raises(BadResponse, match="2 vectors for 3 texts"):
        VectorReader(3).feed(data)
