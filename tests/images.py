"""Images as bytes, written without a library, and their parts in a chat."""

import base64
import struct
import zlib
from typing import Any


def png(width: int = 2, height: int = 3, *, before: bytes = b"", shade: int = 0) -> bytes:
    """A grey PNG, of pixels only if they are few; `before` are chunks before the pixels."""
    pixels = min(width * height, 4096)
    rows = zlib.compress(bytes([shade]) * (pixels + height % 4096))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
        + before
        + chunk(b"IDAT", rows)
        + chunk(b"IEND")
    )


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def red_circle() -> bytes:
    """A PNG of a red circle on grey, as the demo vision model has seen many."""
    size, grey, red = 64, b"\xc8\xc8\xcd", b"\xdc\x28\x28"
    rows = b"".join(
        b"\0" + b"".join(red if inside(x, y) else grey for x in range(size)) for y in range(size)
    )
    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND")


def inside(x: int, y: int) -> bool:
    """A circle in the upper left of 64 x 64 pixels."""
    return (x - 16) ** 2 + (y - 16) ** 2 < 11**2


def jpeg(width: int = 2, height: int = 3, *, before: bytes = b"") -> bytes:
    """The segments of a JPEG, without a valid scan; `before` are segments before its size."""
    frame = struct.pack(">BHHB", 8, height, width, 1) + b"\x01\x11\x00"
    return (
        b"\xff\xd8"
        + segment(0xE0, b"JFIF\0\x01\x01\x01\0H\0H\0\0")
        + before
        + segment(0xC0, frame)
        + segment(0xDA, b"\x01\x01\x00\x00\x3f\x00")
        + b"\x00\xff\xd9"
    )


def segment(marker: int, data: bytes) -> bytes:
    """A segment of a JPEG."""
    return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data


def gif(width: int = 2, height: int = 3, *, frame: tuple[int, int] | None = None) -> bytes:
    """A GIF with a colour table, a comment and one frame, by default as large as its screen."""
    table = bytes(range(6))
    comment = b"!\xfe\x05hello\x00"
    size = struct.pack("<HHHH", 0, 0, *(frame or (width, height)))
    screen = struct.pack("<HHBBB", width, height, 0x80, 0, 0)
    return b"GIF89a" + screen + table + comment + b"," + size + b"\x00\x02\x02\x44\x01\x00;"


def webp(width: int = 2, height: int = 3, *, kind: bytes = b"VP8L") -> bytes:
    """The header of a WebP of one of its three kinds."""
    if kind == b"VP8X":
        data = bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    elif kind == b"VP8 ":
        data = b"\x00\x00\x00\x9d\x01\x2a" + struct.pack("<HH", width, height)
    else:
        data = b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14) + bytes(5)
    body = b"WEBP" + kind + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def data_url(image: bytes, mime_type: str = "image/png") -> str:
    return f"data:{mime_type};base64,{base64.b64encode(image).decode()}"


def part(image: bytes, **more: Any) -> dict[str, Any]:
    """An `image_url` part; `more` are members of its object, such as `detail`."""
    return {"type": "image_url", "image_url": {"url": data_url(image), **more}}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}
