"""Reads one streamed chat answer as it arrives, in any pieces. Computes; never touches a socket.

Parses the JSON of the usage frame only: all else is found by its bytes, or the client would be the
limit. A quotation mark within a text is escaped, so no text looks like a field.
"""

import json

_CONTENT = b'"content":"'
_EMPTY_CONTENT = b'"content":""'
_FINISH = b'"finish_reason":"'
_USAGE = b'"usage":{'
_ERROR = b'"error":{'
_DONE = b"[DONE]"


class BadResponse(Exception):
    """An answer that fails the round: not 200, cut short, wrong in number, or without its end."""


class Head:
    """The head of an HTTP/1.1 response; keeps what of the body came with it."""

    def __init__(self) -> None:
        self._received = b""
        self.rest = b""

    def feed(self, data: bytes) -> dict[str, str] | None:
        """Take bytes; return the fields, by lower-case names, once the head is whole.

        Raises BadResponse where the status is not 200.
        """
        self._received += data
        head, end, self.rest = self._received.partition(b"\r\n\r\n")
        if not end:
            return None
        status, *lines = head.decode("latin-1").split("\r\n")
        if status.split(" ")[1:2] != ["200"]:
            raise BadResponse(self._received[:800].decode("latin-1"))
        pairs = (line.partition(":") for line in lines)
        return {name.strip().lower(): value.strip() for name, _, value in pairs}


class ChunkedBody:
    """A body in chunked encoding, one whole chunk at a time."""

    __slots__ = ("_rest", "finished")

    def __init__(self) -> None:
        self._rest = b""
        self.finished = False

    def feed(self, data: bytes) -> bytes:
        """Take bytes; return the content of the chunks that they complete."""
        data = self._rest + data if self._rest else data
        begin, parts = 0, []
        while not self.finished and (end := data.find(b"\r\n", begin)) >= 0:
            size = int(data[begin:end].partition(b";")[0], 16)
            after = end + 2 + size + 2
            if len(data) < after:
                break
            if data[after - 2 : after] != b"\r\n":
                raise BadResponse(f"a chunk that is longer than it says: {data[begin:after]!r}")
            parts.append(data[end + 2 : after - 2])
            begin, self.finished = after, size == 0
        self._rest = data[begin:]
        return b"".join(parts)


class StreamReader:
    """An event stream of one choice: counts its frames with content, and knows its end."""

    __slots__ = ("_begun", "_body", "_done", "_finish", "_head", "_rest", "chunks", "tokens")

    def __init__(self) -> None:
        self._head = Head()
        self._body = ChunkedBody()
        self._rest = b""
        self._begun = False  # the head is whole
        self._finish = False
        self._done = False
        self.chunks = 0  # frames whose content is not empty
        self.tokens: int | None = None  # as the usage says

    @property
    def finished(self) -> bool:
        """The body has ended."""
        return self._body.finished

    def feed(self, data: bytes) -> int:
        """Take bytes; return how many frames with content they complete."""
        if not self._begun:
            fields = self._head.feed(data)
            if fields is None:
                return 0
            if fields.get("transfer-encoding") != "chunked":
                raise BadResponse("an event stream that is not in chunked encoding")
            self._begun, data = True, self._head.rest
        before = self.chunks
        *frames, self._rest = (self._rest + self._body.feed(data)).split(b"\n\n")
        for frame in frames:
            self._take(frame)
        if self._body.finished:
            self._check_end()
        return self.chunks - before

    def _take(self, frame: bytes) -> None:
        if not frame.startswith(b"data:"):  # a comment that keeps the connection alive
            return
        if self._done:
            raise BadResponse(f"a frame after [DONE]: {frame!r}")
        if _CONTENT in frame and _EMPTY_CONTENT not in frame:
            self.chunks += 1
        if _FINISH in frame:
            self._finish = True
        if _USAGE in frame:
            self.tokens = json.loads(frame[5:])["usage"]["completion_tokens"]
        elif frame[5:].strip() == _DONE:
            self._done = True
        elif _ERROR in frame:
            raise BadResponse(f"an error within the stream: {frame!r}")

    def _check_end(self) -> None:
        facts = {
            "finish reason": self._finish,
            "usage": self.tokens is not None,
            "[DONE]": self._done,
            "content": self.chunks > 0,
            "last frame whole": not self._rest.strip(),
        }
        missing = ", ".join(name for name, holds in facts.items() if not holds)
        if missing:
            raise BadResponse(f"a stream that ended without: {missing}")
