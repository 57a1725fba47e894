"""The format and the size of an image, from its header. Nothing is decoded, so a decompression bomb
costs as much as any other image.

A file that states its size twice is refused, because decoders disagree on which one counts.
PNG: https://www.w3.org/TR/png-3/ JPEG: ITU-T T.81, annex B. GIF: GIF89a specification.
WebP: RFC 9649.
"""

from collections.abc import Callable, Iterator
from struct import unpack
from typing import NamedTuple

FORMATS = ("png", "jpeg", "gif", "webp")

# Returns the `length` bytes of the file from `start`; fewer at its end
Read = Callable[[int, int], bytes]

_MAX_PARTS = 1024  # chunks, segments or blocks before the pixels: 2 us each


class UnknownFormat(ValueError):
    """The first bytes are of none of `FORMATS`."""


class InvalidHeader(ValueError):
    """The header is truncated or contradicts itself; the message says what is wrong."""


class Header(NamedTuple):
    """Values in the header of an image; width and height in pixels, at least 1."""

    format: str
    width: int
    height: int


def read_header(read: Read) -> Header:
    """The header of the file that `read` reads. Raises UnknownFormat or InvalidHeader."""
    start = read(0, 32)
    for format, (magic, size_of) in _READERS.items():
        if start.startswith(magic):
            width, height = size_of(read)
            if not (width and height):
                raise InvalidHeader(f"it is {width} x {height} pixels")
            return Header(format, width, height)
    raise UnknownFormat


def _take(read: Read, start: int, length: int) -> bytes:
    """Exactly these bytes."""
    found = read(start, length)
    if len(found) < length:
        raise InvalidHeader("it ends within its header")
    return found


def _parts() -> Iterator[int]:
    """Counts the parts of a header."""
    yield from range(_MAX_PARTS)
    raise InvalidHeader(f"it has more than {_MAX_PARTS} parts before its pixels")


def _png(read: Read) -> tuple[int, int]:
    length, kind, width, height = unpack(">I4sII", _take(read, 8, 16))
    if (length, kind) != (13, b"IHDR"):
        raise InvalidHeader("its first chunk is not IHDR")
    at = 33  # after the signature and IHDR
    for _ in _parts():
        length, kind = unpack(">I4s", _take(read, at, 8))
        if kind == b"IDAT":
            break
        if kind in (b"IHDR", b"IEND"):
            raise InvalidHeader("it has no pixels after its first chunk, or two sizes")
        at += 12 + length
    return width, height


# Segments without a length: TEM and the restart markers
_BARE = {0x01, *range(0xD0, 0xD8)}
# Segments with the size: SOF0 to SOF15, but for DHT, JPG and DAC
_FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SCAN, _FILL = 0xDA, 0xFF


def _jpeg(read: Read) -> tuple[int, int]:
    at, size = 2, None
    for _ in _parts():
        prefix, marker = _take(read, at, 2)
        if prefix != _FILL:
            raise InvalidHeader("it has no marker where one must be")
        if marker == _FILL:
            at += 1
            continue
        if marker in _BARE:
            at += 2
            continue
        if marker == _SCAN:
            break
        length = int.from_bytes(_take(read, at + 2, 2), "big")
        if length < 2 or marker in (0x00, 0xD8, 0xD9):
            raise InvalidHeader("it has an invalid segment")
        if marker in _FRAMES:
            if size is not None:
                raise InvalidHeader("it has two sizes")
            height, width = unpack(">HH", _take(read, at + 5, 4))
            size = width, height
        at += 2 + length
    if size is None:
        raise InvalidHeader("it has no size before its pixels")
    return size


def _gif(read: Read) -> tuple[int, int]:
    """The area that the first frame needs: it may be larger than the screen."""
    width, height, flags = unpack("<HHB", _take(read, 6, 5))
    at = 13 + (3 << (1 + (flags & 7)) if flags & 0x80 else 0)
    parts = _parts()
    while True:
        introducer = _take(read, at, 1)
        next(parts)
        if introducer == b",":
            break
        if introducer != b"!":
            raise InvalidHeader("it has no frame")
        at += 2
        while length := _take(read, at, 1)[0]:
            next(parts)
            at += 1 + length
        at += 1
    left, top, frame_width, frame_height = unpack("<HHHH", _take(read, at + 1, 8))
    if not (frame_width and frame_height):
        return 0, 0
    return max(width, left + frame_width), max(height, top + frame_height)


def _webp(read: Read) -> tuple[int, int]:
    head = _take(read, 0, 30)
    kind = head[12:16]
    if head[8:12] != b"WEBP":
        raise UnknownFormat
    if kind == b"VP8X":  # libwebp refuses an image that differs from its canvas
        return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
    if kind == b"VP8L" and head[20] == 0x2F:
        bits = int.from_bytes(head[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":
        width, height = unpack("<HH", head[26:30])
        return width & 0x3FFF, height & 0x3FFF
    raise InvalidHeader("its first chunk is not VP8, VP8L or VP8X")


_READERS: dict[str, tuple[bytes | tuple[bytes, ...], Callable[[Read], tuple[int, int]]]] = {
    "png": (b"\x89PNG\r\n\x1a\n", _png),
    "jpeg": (b"\xff\xd8\xff", _jpeg),
    "gif": ((b"GIF87a", b"GIF89a"), _gif),
    "webp": (b"RIFF", _webp),
}
