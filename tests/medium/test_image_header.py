"""Format and size from the header, without decoding; anything odd is refused."""

import struct
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_frontend.media.image_header import (
    Header,
    InvalidHeader,
    Read,
    UnknownFormat,
    read_header,
)
from tests import images

WRITERS: dict[str, Callable[[int, int], bytes]] = {
    "png": images.png,
    "jpeg": images.jpeg,
    "gif": images.gif,
    "webp": images.webp,
}
SIDES = st.integers(1, 16_383)  # VP8 and VP8L have 14 bits


def reading(data: bytes) -> Read:
    return lambda start, length: data[start : start + length]


@pytest.mark.parametrize("format", WRITERS)
@given(width=SIDES, height=SIDES)
def test_size_is_that_of_the_file(format, width, height):
    data = WRITERS[format](width, height)

    assert Header(format, width, height) == read_header(reading(data))


@pytest.mark.parametrize("kind", [b"VP8 ", b"VP8L", b"VP8X"])
def test_each_kind_of_webp_has_its_size(kind):
    assert Header("webp", 640, 480) == read_header(reading(images.webp(640, 480, kind=kind)))


# The bytes that a reader needs: of a WebP its first chunk
NEEDED = {
    "png": images.png().index(b"IDAT") + 4,
    "jpeg": images.jpeg().index(b"\xff\xda") + 2,
    "gif": images.gif().index(b",") + 9,
    "webp": 30,
}


@pytest.mark.parametrize("format", WRITERS)
def test_files_that_end_within_their_header_are_refused(format):
    """At any byte."""
    data, needed = WRITERS[format](2, 3), NEEDED[format]

    assert read_header(reading(data[:needed])) == (format, 2, 3)
    for end in range(needed):
        with pytest.raises((InvalidHeader, UnknownFormat)):
            read_header(reading(data[:end]))


@given(st.binary(max_size=64))
def test_other_files_have_no_known_format(data):
    with pytest.raises((InvalidHeader, UnknownFormat)):
        read_header(reading(b"%PDF" + data))


@pytest.mark.slow
@pytest.mark.parametrize("format", WRITERS)
@given(data=st.data())
def test_damaged_headers_raise_nothing_else(format, data):
    """A decoder may still refuse the file; a size that is returned is at least 1 x 1."""
    damaged = bytearray(WRITERS[format](2, 3))
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        header = read_header(reading(bytes(damaged)))
    except (InvalidHeader, UnknownFormat):
        return

    assert header.width >= 1
    assert header.height >= 1


LARGE = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 0, 0, 0, 0)
TWO_SIZES = {
    "png": images.png(before=images.chunk(b"IHDR", LARGE)),
    "jpeg": images.jpeg(before=images.segment(0xC2, b"\x08\xff\xff\xff\xff\x01\x01\x11\x00")),
}


@pytest.mark.parametrize("format", TWO_SIZES)
def test_files_with_two_sizes_are_refused(format):
    """Decoders use the last one: the first would hide a bomb."""
    with pytest.raises(InvalidHeader):
        read_header(reading(TWO_SIZES[format]))


def test_gif_needs_the_area_of_its_first_frame():
    """PIL enlarges the image to the frame, whatever the screen's size is."""
    data = images.gif(1, 1, frame=(50_000, 40_000))

    assert Header("gif", 50_000, 40_000) == read_header(reading(data))


EMPTY = [images.png(0, 5), images.jpeg(5, 0), images.gif(3, 3, frame=(0, 1))]


@pytest.mark.parametrize("data", EMPTY)
def test_images_without_pixels_are_refused(data):
    with pytest.raises(InvalidHeader, match=r"\bx 0 pixels|\b0 x"):
        read_header(reading(data))


MANY = 40_000
LONG = {
    "png": images.png(before=images.chunk(b"tEXt", b"a") * MANY),
    "jpeg": images.jpeg(before=images.segment(0xFE, b"") * MANY),
    "jpeg-fill": images.jpeg(before=b"\xff" * MANY),
    "gif": images.gif().replace(b"\x05hello\x00", b"\x01a" * MANY + b"\x00"),
    "gif-extensions": images.gif().replace(b"!\xfe\x05hello\x00", b"!\xfe\x00" * MANY),
}


@pytest.mark.parametrize("name", LONG)
def test_headers_with_many_parts_are_refused_in_little_time(name):
    data = LONG[name]
    began_s = time.thread_time()
    with pytest.raises(InvalidHeader, match="more than 1024 parts"):
        read_header(reading(data))

    assert time.thread_time() - began_s < 0.05


def test_large_metadata_is_skipped():
    """EXIF, ICC profiles and comments of megabytes, in few parts."""
    profile = images.segment(0xE2, bytes(65_000)) * 200
    text = images.chunk(b"iTXt", bytes(10_000_000))

    assert read_header(reading(images.jpeg(8, 9, before=profile))) == ("jpeg", 8, 9)
    assert read_header(reading(images.png(8, 9, before=text))) == ("png", 8, 9)
