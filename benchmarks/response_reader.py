"""Reads one HTTP/1.1 response as it arrives, in any pieces. Counts frames, parses none of them."""

import re

_FRAME = b"data: "
_DONE = b"data: [DONE]\n\n"
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_END = _DONE + _LAST_CHUNK
_CONTENT = re.compile(rb'"(?:content|text)":"[^"]')
_OK = b"HTTP/1.1 200"
_LENGTH = re.compile(rb"content-length: *(\d+)\r\n", re.IGNORECASE)

# The opening frame, the finish reason and [DONE]: frames that hold no token
FRAMES_BESIDE_CHUNKS = 3


class BadResponse(Exception):
    """A response that fails the run: not 200, cut short, or without [DONE]."""


class StreamReader:
    """An event stream in chunked encoding."""

    __slots__ = ("_tail", "began", "finished", "frames")

    def __init__(self) -> None:
        self._tail = b""  # all until the first content, then what a frame's start could lie in
        self.frames = 0
        self.began = False  # the first content that is not empty has come
        self.finished = False

    def feed(self, data: bytes) -> None:
        """Takes the next bytes of the response."""
        tail = self._tail
        window = tail + data
        self.frames += window.count(_FRAME, max(len(tail) - len(_FRAME) + 1, 0))
        if self.began:
            self._tail = window[1 - len(_END) :]
        else:
            self._look_for_content(window)
        if window.endswith(_LAST_CHUNK):
            self._finish(window)

    def _look_for_content(self, window: bytes) -> None:
        _check_status(window)
        self.began = _CONTENT.search(window) is not None
        self._tail = window

    def _finish(self, window: bytes) -> None:
        if not window.endswith(_END):
            raise BadResponse(f"a stream without [DONE]: {window[-500:]!r}")
        if not self.began:
            raise BadResponse(f"a stream without content: {window[-500:]!r}")
        self.finished = True


class WholeReader:
    """A response whose length its head tells."""

    __slots__ = ("_received", "finished")

    def __init__(self) -> None:
        self._received = b""
        self.finished = False

    def feed(self, data: bytes) -> None:
        """Takes the next bytes of the response."""
        self._received += data
        head, end_of_head, body = self._received.partition(b"\r\n\r\n")
        _check_status(self._received)
        if end_of_head:
            length = _LENGTH.search(head + b"\r\n")
            if length is None:
                raise BadResponse(f"a response without length: {head!r}")
            self.finished = len(body) >= int(length[1])


def _check_status(response: bytes) -> None:
    if not response.startswith(_OK[: len(response)]):
        raise BadResponse(f"{response[:500]!r}")
