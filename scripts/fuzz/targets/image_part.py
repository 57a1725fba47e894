"""An image or audio of a chat: an input within the limits, or a 400.

An image's header is that of a plain reading of the bytes, although only pieces of the text are
decoded.
"""

import base64

from openai_frontend.errors import InvalidRequest
from openai_frontend.media.audio import format_of
from openai_frontend.media.image_header import read_header
from openai_frontend.media.modalities import AudioFile, AudioSupport, ImageInput, ImageSupport
from openai_frontend.serving.request.audio import AudioFileReader, AudioLimits
from openai_frontend.serving.request.images import MAX_RATIO, MAX_SIDE, ImageLimits, ImageReader
from openai_frontend.serving.request.media import MediaReader
from openai_frontend.serving.request.media_parts import MediaPart
from scripts.fuzz import loop
from scripts.fuzz.draw import Draw
from scripts.fuzz.outcome import refusal
from tests import images
from tests.fast.serving.fake_model import FakeModel

LIMITS = ImageLimits(max_image_pixels=10_000)

WORDS = (
    *("data:", "image/png", "image/jpeg", ";base64,", ",", "=", "==", "http://", "file:"),
    *("IHDR", "IDAT", "tEXt", "RIFF", "WEBP", "VP8 ", "VP8L", "VP8X", "GIF89a"),
    *("\xff\xda", "\xff\xc0", "\x89PNG"),
)
SEEDS = (
    *(b"\x00" + write() for write in (images.png, images.jpeg, images.gif, images.webp)),
    *(b"\x00" + images.webp(kind=kind) for kind in (b"VP8 ", b"VP8X")),
    b"\x00" + images.png(before=images.chunk(b"tEXt", b"a")),
    b"\x00" + images.jpeg(before=images.segment(0xE1, b"Exif")),
    b"\x01" + images.data_url(images.png()).encode(),
    b"\x01data:image/gif;charset=a;base64,R0lGODlhAgADAIAAAAABAgMEBSwAAAAAAgADAAACAkQBADs=",
    b"\x01http://127.0.0.1/a.png",
    *(b"\x02" + head + bytes(20) for head in (b"RIFF____WAVEfmt ", b"ID3", b"fLaC", b"OggS")),
    b"\x03data:audio/wav;base64,UklGRgAAAABXQVZF",
)  # fmt: skip


def check(data: bytes) -> None:
    draw = Draw(data)
    kind = draw.byte()
    audio = bool(kind & 2)
    try:
        media = loop.run(
            _READER.read([_part(draw.rest(), as_text=bool(kind & 1), audio=audio)], _Model())
        )
    except InvalidRequest as error:
        refusal(error, data)
        return
    if audio:
        [file] = media.audio_files
        _check_audio(file)
    else:
        [image] = media.images
        _check_image(image)


def _part(rest: bytes, *, as_text: bool, audio: bool) -> MediaPart:
    place = "messages[0].content[0]"
    if audio and not as_text:
        given = {"data": base64.b64encode(rest).decode(), "format": "wav"}
        return MediaPart({"type": "input_audio", "input_audio": given}, place)
    kind = "audio_url" if audio else "image_url"
    url = rest.decode("latin-1") if as_text else images.data_url(rest)
    return MediaPart({"type": kind, kind: url}, place)


_READER = MediaReader(ImageReader(LIMITS), AudioFileReader(AudioLimits()))


class _Model(FakeModel):
    images = ImageSupport()
    audio = AudioSupport()
    name = model_name = "sees"


def _check_audio(file: AudioFile) -> None:
    assert format_of(base64.b64decode(file.base64, validate=True)) == file.format


def _check_image(image: ImageInput) -> None:
    data = base64.b64decode(image.base64, validate=True)
    header = read_header(lambda start, length: data[start : start + length])
    assert header == (image.format, image.width, image.height)
    assert image.width * image.height <= LIMITS.max_image_pixels
    assert min(image.width, image.height) >= 1
    assert max(image.width, image.height) <= min(
        MAX_SIDE, MAX_RATIO * min(image.width, image.height)
    )
