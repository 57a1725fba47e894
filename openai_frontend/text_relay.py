"""The fast path of a streamed response: text goes from the model to the client's socket as frames,
without a delta per token.

Native code implements the protocols (`triton/_core.pyi`). No HTTP, no Triton.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

# Writes a frame; True pauses the relay until it is resumed.
FrameWriter = Callable[[bytes], bool]
Resume = Callable[[], None]


class StreamWriter(Protocol):
    """Writes what follows the headers of one response; native, so that frames made there reach the
    client's socket without Python. A `FrameWriter`.

    Pieces for a slow client wait up to a limit. Beyond it the client is dropped, because nothing
    slows the model down.
    """

    on_drained: Any  # called without arguments when nothing waits any longer

    @property
    def paused(self) -> bool:
        """Whether the client is slow, so that pieces wait."""

    @property
    def body_bytes(self) -> int:
        """Bytes written so far, without framing and what waits."""

    def __call__(self, piece: bytes, /) -> bool:
        """Write a piece. True if the client is slow: the caller should wait for `on_drained`."""

    def open(
        self,
        write: Callable[[bytes], object],
        buffered: Callable[[], int],
        *,
        fd: int = -1,
        chunked: bool = True,
        paused: bool = False,
    ) -> None:
        """Write with `write` from now on: the headers are sent. With a socket `fd`, write to it
        directly while `buffered` returns 0. `chunked`: with the framing of HTTP/1.1.
        """

    def pause(self) -> None:
        """The transport's buffer is full: pieces wait."""

    def resume(self) -> None:
        """The transport has room again."""

    def close(self, error: Exception | None = None) -> None:
        """Discard what waits, and later pieces; with an error, later pieces raise it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEnd:
    """The end of a segment of parsed text: before one of the markers, or with a JSON value."""

    max_bytes: int  # of the segment's text
    markers: tuple[str, ...] = ()  # white space before one is not part of the text
    # JSON: the closing brackets of open values, and the kind of token at the next character:
    # "v" a value, "f" a first element, "k" a key, "c" a colon, "a" what follows a value, "K" the
    # inside of a key, "V" the inside of a string. None: text
    json: tuple[str, str] | None = None


NUMBER_SLOT = b"\x01"  # as in native/inference.h; JSON has no such byte


class EventNumbers:
    """Counts the events of one stream of a dialect that numbers them.

    Its writer and the relay take numbers in the order in which they write.
    """

    __slots__ = ("next",)

    def __init__(self) -> None:
        self.next = 0  # the number of the next event; native code reads and sets it

    def take(self) -> int:
        """The number of the event that is written now."""
        number = self.next
        self.next = number + 1
        return number


class SegmentRelay(Protocol):
    """The relay of a stream that a parser reads, segment by segment."""

    def begin(self, around: Sequence[bytes], end: SegmentEnd) -> bool:
        """Write text as frames until the segment ends: a JSON string between each two parts of
        `around`, nothing if there are none. A delta then has all of it for the parser, `relayed`.

        False if deltas wait, which come first.
        """

    def resume(self) -> None:
        """Continue after the writer has paused the relay."""


OpenRelay = Callable[[bytes, bytes, FrameWriter, EventNumbers | None], Resume]
OpenSegments = Callable[[FrameWriter, EventNumbers | None], SegmentRelay]
# Adds the JSON of a token before and after its log probability
AddToken = Callable[[int, bytes, bytes], None]
OpenLogprobs = Callable[[tuple[bytes, bytes, bytes], int, FrameWriter], tuple[AddToken, Resume]]


class TextRelay:
    """The fast path of a streamed response: text that only needs a frame goes directly from the
    model to its writer and skips everything that reads deltas.

    The code that runs the request offers the relay; the code that streams the response may take it
    after the first deltas.
    """

    __slots__ = ("_open", "_open_logprobs", "_open_segments")

    def __init__(self) -> None:
        self._open: OpenRelay | None = None
        self._open_segments: OpenSegments | None = None
        self._open_logprobs: OpenLogprobs | None = None

    def offer(
        self,
        open: OpenRelay,
        open_segments: OpenSegments | None = None,
        open_logprobs: OpenLogprobs | None = None,
    ) -> None:
        """`open` starts the relay and returns the function that resumes it after a pause;
        `open_segments` starts one that only relays segments, `open_logprobs` one that relays text
        with log probabilities.
        """
        self._open = open
        self._open_segments = open_segments
        self._open_logprobs = open_logprobs

    def take_logprobs(
        self, around: tuple[bytes, bytes, bytes], top: int, write: FrameWriter
    ) -> tuple[AddToken, Resume] | None:
        """Like `take`, for deltas of text with log probabilities: each becomes a frame, the text
        between the first two parts, its tokens with `top` alternatives between the last two.

        Also returns what makes a token known; deltas with other tokens are not relayed.
        """
        return None if self._open_logprobs is None else self._open_logprobs(around, top, write)

    def take_segments(
        self, write: FrameWriter, numbers: EventNumbers | None = None
    ) -> SegmentRelay | None:
        """Like `take`, for output that is parsed: only the segments that are begun are relayed."""
        return None if self._open_segments is None else self._open_segments(write, numbers)

    def take(
        self, before: bytes, after: bytes, write: FrameWriter, numbers: EventNumbers | None = None
    ) -> Resume | None:
        """Write deltas that contain only text as frames from now on: the text, joined if several
        deltas come together, as a JSON string between `before` and `after`. With `numbers`, each
        frame takes one, which replaces `NUMBER_SLOT`.

        Returns the function that resumes a paused relay, or None if no relay was offered.
        """
        return None if self._open is None else self._open(before, after, write, numbers)
