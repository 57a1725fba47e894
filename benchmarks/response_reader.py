"""Reads one HTTP/1.1 response as it arrives, in any pieces. Counts in it, parses no JSON."""

import re
from dataclasses import dataclass

TOKEN_TEXT = b" token"  # what the mock engine and the floors answer for each token

_FRAME_END = b"\n\n\r\n"
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_ERROR = b'"error":{'
_OK = b"HTTP/1.1 200"
REFUSED = b"HTTP/1.1 503"
_LENGTH = re.compile(rb"content-length: *(\d+)\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"transfer-encoding: *chunked\r\n", re.IGNORECASE)
_CHUNK_MARK = re.compile(rb"\r\n[0-9a-fA-F]+\r\n")  # the JSON of all servers is one line


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """How the streams of an API end."""

    last: bytes
    finish: bytes  # within the last `tail_bytes`
    usage: re.Pattern[bytes]  # the output's tokens; the last match counts
    tail_bytes: int  # longer than any pattern


# Behind the finish reason come its frame's rest, at most one usage frame, and [DONE]
CHAT_END = StreamEnd(
    b"data: [DONE]\n\n", b'"finish_reason":"', re.compile(rb'"completion_tokens": ?(\d+)'), 1024
)
_OUTPUT_TOKENS = re.compile(rb'"output_tokens": ?(\d+)')
# The last event has the whole response, with the request's tools behind the usage
RESPONSES_END = StreamEnd(b"\n\n", b'"output_tokens":', _OUTPUT_TOKENS, 8192)
MESSAGES_END = StreamEnd(b"\n\n", b'"message_stop"', _OUTPUT_TOKENS, 1024)


class BadResponse(Exception):
    """A response that fails the run: not 200, cut short, wrong in number, or without its end."""


class StreamReader:
    """An event stream in chunked encoding.

    `chunks` counts texts that are not empty, so neither an opening frame nor a usage frame;
    `tokens` counts the known text of a token, however many of them one chunk holds; with `usage`
    it is the usage frame's number, once that has come. A quotation mark within a text is escaped,
    so no text looks like a field.
    """

    __slots__ = (
        *("_empty", "_end", "_nonempty", "_tail", "_text", "_usage"),
        *("began", "chunks", "finished", "tokens"),
    )

    def __init__(
        self, text_field: bytes = b"content", *, usage: bool = False, end: StreamEnd = CHAT_END
    ) -> None:
        self._usage = usage
        self._end = end
        self._text = b'"%s":"' % text_field
        self._empty = self._text + b'"'
        self._nonempty = re.compile(re.escape(self._text) + b'[^"]')
        self._tail = b""  # all until the first text, then what a pattern's start could lie in
        self.chunks = 0
        self.tokens = 0
        self.began = False  # the first text that is not empty has come
        self.finished = False

    def feed(self, data: bytes) -> None:
        """Takes the next bytes of the response. 0.8 us for one chunk."""
        tail = self._tail
        window = tail + data
        if tail.endswith(_FRAME_END):  # so no pattern begins before this data
            self.chunks += data.count(self._text) - data.count(self._empty)
            self.tokens += data.count(TOKEN_TEXT)
        else:
            old = len(tail)
            self.chunks += _count(window, self._text, old) - _count(window, self._empty, old)
            self.tokens += _count(window, TOKEN_TEXT, old)
        if self.began:
            self._tail = window[-self._end.tail_bytes :]
        else:
            self._look_for_text(window)
        if window.endswith(_LAST_CHUNK):
            self._finish(window)

    def _look_for_text(self, window: bytes) -> None:
        _check_status(window)
        self.began = self._nonempty.search(window) is not None
        self._tail = window

    def _finish(self, window: bytes) -> None:
        end = self._end
        if not window.endswith(end.last + _LAST_CHUNK):
            raise BadResponse(f"a stream that breaks off: {window[-500:]!r}")
        if _ERROR in window:
            raise BadResponse(f"an error within the stream: {window[-500:]!r}")
        if end.finish not in window:
            raise BadResponse(f"a stream without finish reason: {window[-500:]!r}")
        if not self.began:
            raise BadResponse(f"a stream without content: {window[-500:]!r}")
        if self._usage:
            usage = end.usage.findall(window)
            if not usage:
                raise BadResponse(f"a stream without usage: {window[-500:]!r}")
            self.tokens = int(usage[-1])
        self.finished = True


def _count(window: bytes, pattern: bytes, old: int) -> int:
    """Those that end beyond the first `old` bytes, which were counted before."""
    return window.count(pattern, max(old - len(pattern) + 1, 0))


class WholeReader:
    """A response of JSON, whose length its head tells or whose chunks do.

    `ending` is what a whole answer must hold, so many `times`.
    """

    __slots__ = ("_chunked", "_ending", "_missing", "_pieces", "_status", "_times", "finished")

    def __init__(self, ending: bytes = b"", times: int = 1, *, status: bytes = _OK) -> None:
        self._ending = ending
        self._times = times
        self._status = status  # how it must begin
        self._pieces: list[bytes] = []
        self._missing: int | None = None  # bytes; None until the head is read
        self._chunked = False
        self.finished = False

    def feed(self, data: bytes) -> None:
        """Takes the next bytes of the response."""
        self._pieces.append(data)
        if self._missing is None:
            self._read_head(b"".join(self._pieces))
        elif self._chunked:
            self._pieces = [b"".join(self._pieces)]
        else:
            self._missing -= len(data)
        if self._missing is None:
            return
        if self._pieces[-1].endswith(_LAST_CHUNK) if self._chunked else self._missing <= 0:
            self._finish()

    def _read_head(self, received: bytes) -> None:
        _check_status(received, self._status)
        head, end_of_head, body = received.partition(b"\r\n\r\n")
        if not end_of_head:
            return
        head += b"\r\n"
        length = _LENGTH.search(head)
        if length is not None:
            self._missing = int(length[1]) - len(body)
        elif _CHUNKED.search(head):
            self._missing, self._chunked, self._pieces = 0, True, [received]
        else:
            raise BadResponse(f"a response without length: {head!r}")

    def _finish(self) -> None:
        response = b"".join(self._pieces)
        if self._chunked:
            response = _CHUNK_MARK.sub(b"", response)
        found = response.count(self._ending)
        if self._ending and found != self._times:
            counts = f"{found} {self._ending!r}, not {self._times}"
            raise BadResponse(f"a response with {counts}: {response[-500:]!r}")
        self.finished = True


def _check_status(response: bytes, status: bytes = _OK) -> None:
    if not response.startswith(status[: len(response)]):
        raise BadResponse(f"{response[:500]!r}")
