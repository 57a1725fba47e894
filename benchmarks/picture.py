"""JPEG images as data URLs. Each number makes another file at no cost: a comment has it."""

import base64
import functools
import io

_COMMENT = 15  # characters: with its marker, the comment ends where a base64 group ends


def data_url(side: int, number: int) -> str:
    """A square image of `side` pixels, of about 50 kB per 512 x 512."""
    start, rest = _parts(side)
    comment = b"\xff\xfe" + (_COMMENT + 2).to_bytes(2, "big") + f"{number:0{_COMMENT}d}".encode()
    return f"data:image/jpeg;base64,{base64.b64encode(start + comment).decode()}{rest}"


@functools.cache
def _parts(side: int) -> tuple[bytes, str]:
    """The file's start marker, and the base64 text of all that follows."""
    import numpy  # only for loads with images, as is PIL
    from PIL import Image

    noise = numpy.random.default_rng(side).normal(0, 6, (side, side, 3))
    shades = numpy.linspace(40, 215, side)[:, None, None]
    pixels = (shades + noise).clip(0, 255).astype(numpy.uint8)
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, "JPEG", quality=85)
    file = written.getvalue()
    return file[:2], base64.b64encode(file[2:]).decode()
