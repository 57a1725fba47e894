"""Image parts of a request become inputs, or errors that name their place and the limit."""

import asyncio
import base64
import hashlib
import threading
from typing import Any

import pytest

from openai_frontend.errors import InvalidRequest
from openai_frontend.media.image_header import read_header
from openai_frontend.media.modalities import AudioSupport, ImageInput, ImageSupport
from openai_frontend.serving.request.images import ImageLimits, ImageReader
from openai_frontend.serving.request.media_parts import MediaPart
from tests import images
from tests.fast.auth.key_files import caller, key
from tests.fast.serving.fake_model import FakeModel

READ_HEADER = "openai_frontend.serving.request.images.read_header"
PLACE = "messages[0].content[0]"
URL = f"{PLACE}.image_url.url"


class Model(FakeModel):
    """A model that takes images."""

    name = model_name = "sees"

    def __init__(self, images: ImageSupport | None, audio: AudioSupport | None = None) -> None:
        super().__init__()
        self.images = images
        self.audio = audio


ALL = ImageSupport(details=("auto", "low", "high", "original"))


async def read(
    *parts: dict[str, Any],
    model: Model | None = None,
    reader: ImageReader | None = None,
    **limits: int,
) -> tuple[ImageInput, ...]:
    sent = [MediaPart(each, f"messages[0].content[{i}]") for i, each in enumerate(parts)]
    reader = reader or ImageReader(ImageLimits(**limits))
    return await reader.read(sent, model or Model(ALL))


async def refusal(*parts: dict[str, Any], **more: Any) -> tuple[str | None, str | None, str]:
    with pytest.raises(InvalidRequest) as refused:
        await read(*parts, **more)
    return refused.value.param, refused.value.code, refused.value.message


def url(text: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": text}}


async def test_images_are_read_in_order_without_being_decoded():
    """Size and format are those of the header; the digest is that of the base64 text."""
    first, second = images.png(4, 5), images.jpeg(6, 7)

    one, two = await read(images.part(first, detail="low"), images.part(second))

    text = base64.b64encode(first).decode()
    assert one == ImageInput(
        base64=text,
        digest=hashlib.sha256(text.encode()).hexdigest(),
        width=4,
        height=5,
        format="png",
        detail="low",
        param=URL,
    )
    assert (two.format, two.width, two.height, two.detail) == ("jpeg", 6, 7, "auto")


FORMS = [
    {"type": "image_url", "image_url": images.data_url(images.png())},
    url("DATA:image/PNG;base64," + base64.b64encode(images.png()).decode()),
    url("data:image/png;charset=utf-8;base64," + base64.b64encode(images.png()).decode()),
    url(images.data_url(images.png(), "image/jpg")),  # a wrong label of a known format
    images.part(images.png(), detail=None),
]


@pytest.mark.parametrize("part", FORMS)
async def test_every_form_of_a_data_url_is_read(part):
    """The first bytes decide the format, not the label: clients label every image as JPEG."""
    [image] = await read(part)

    assert (image.format, image.width, image.height, image.detail) == ("png", 2, 3, "auto")


EMPTY = (
    "Expected a base64-encoded data URL with an image MIME type (e.g. "
    "'data:image/png;base64,aW1nIGJ5dGVzIGhlcmU='), but got empty base64-encoded bytes."
)
UNSUPPORTED = (
    "You uploaded an unsupported image. Please make sure your image has of one the following "
    "formats: ['png', 'jpeg', 'gif', 'webp']."
)
PNG = base64.b64encode(images.png()).decode()
INVALID = {
    "empty": ("data:image/png;base64,", "invalid_image_url", EMPTY),
    "http": ("http://h/a.png", "invalid_image_url", "fetches nothing"),
    "https": ("HTTPS://h/a.png", "invalid_image_url", "fetches nothing"),
    "file": ("file:///etc/passwd", "invalid_image_url", "not a data URL"),
    "path": ("/etc/passwd", "invalid_image_url", "not a data URL"),
    "data path": ("data:/etc/passwd", "invalid_image_url", "not a data URL"),
    "bare base64": (PNG, "invalid_image_url", "not a data URL"),
    "nothing": ("", "invalid_image_url", "not a data URL"),
    "not base64": ("data:image/png,abc", "invalid_image_url", "without ';base64'"),
    "text": ("data:text/plain;base64,QQ==", "invalid_image_url", "MIME type 'text/plain'"),
    "no type": ("data:;base64,QQ==", "invalid_image_url", "MIME type."),
    "heic": ("data:image/heic;base64,QQ==", "invalid_image_format", UNSUPPORTED),
    "svg": ("data:image/svg+xml;base64,QQ==", "invalid_image_format", UNSUPPORTED),
    "pdf as png": ("data:image/png;base64,JVBERi0xLjc=", "invalid_image_format", UNSUPPORTED),
    "padding": ("data:image/png;base64," + PNG + "=", "invalid_image_url", "not valid base64"),
    "length": ("data:image/png;base64," + PNG[:-1], "invalid_image_url", "not valid base64"),
    "alphabet": ("data:image/png;base64," + PNG[:-8] + "!" * 8, "invalid_image_url", "not valid"),
    "urlsafe": ("data:image/png;base64," + PNG[:-8] + "-_-_" * 2, "invalid_image_url", "not valid"),
    "inner padding": (
        "data:image/png;base64," + PNG[:-8] + "QQ==QQ==",
        "invalid_image_url",
        "not valid",
    ),
    "unicode": ("data:image/png;base64," + PNG[:-4] + "éééé", "invalid_image_url", "not valid"),
    "newlines": ("data:image/png;base64," + PNG[:-4] + "\nQQ\n", "invalid_image_url", "not valid"),
    "truncated": ("data:image/png;base64," + PNG[:24], "image_parse_error", "ends within"),
}


@pytest.mark.parametrize("name", INVALID)
async def test_invalid_image_is_refused_in_openais_words(name):
    """Even if only a byte far behind the header is wrong: decoders that skip it see another one."""
    given, code, words = INVALID[name]

    param, found, message = await refusal(url(given))

    assert (URL, code) == (param, found)
    assert words in message
    assert len(given) < 64 or given not in message


LIMITS: list[tuple[bytes, dict[str, int], str]] = [
    (images.png(16_385, 16_000), {"max_image_pixels": 10**9}, "16384 pixels per side"),
    (images.png(1, 201), {}, "at most 200 times"),
    (images.png(201, 1), {}, "at most 200 times"),
    (images.png(5001, 5000), {}, "25005000; the limit is 25000000 pixels per image"),
    (images.png(10, 10), {"max_image_pixels": 99}, "max_image_pixels"),
    (images.png(), {"max_image_bytes": 40}, "the limit is 40 bytes per image (max_image_bytes)"),
]


@pytest.mark.parametrize(("image", "limits", "words"), LIMITS)
async def test_image_beyond_a_limit_is_refused_by_its_header(image, limits, words):
    param, code, message = await refusal(images.part(image), **limits)

    assert (param, code) == (URL, "image_too_large")
    assert words in message


async def test_images_within_the_limits_are_taken():
    """The limits themselves are allowed."""
    taken = await read(
        images.part(images.png(5000, 5000)),
        images.part(images.png(16_384, 82)),
        images.part(images.png(200, 1)),
    )

    assert len(taken) == 3


async def test_pixels_of_a_request_are_limited_in_all():
    part = images.part(images.png(5000, 5000))

    assert len(await read(*[part] * 4)) == 4
    param, code, message = await refusal(*[part] * 5)
    assert (param, code) == ("messages", "image_too_large")
    assert "125000000 pixels in all; the limit is 100000000" in message


@pytest.mark.parametrize(("own", "most"), [(None, 16), (3, 3), (99, 16)])
async def test_number_of_images_is_limited(own, most):
    """By the server or by the model, whichever is lower."""
    model = Model(ImageSupport(max_per_request=own))
    part = images.part(images.png())

    assert len(await read(*[part] * most, model=model)) == most
    param, code, message = await refusal(*[part] * (most + 1), model=model)
    assert (param, code) == ("messages", "array_above_max_length")
    assert f"at most {most} images" in message


async def test_model_without_images_refuses_them_in_openais_words():
    param, code, message = await refusal(images.part(images.png()), model=Model(None))

    assert (f"{PLACE}.type", "unsupported_value") == (param, code)
    assert message == "Invalid content type. image_url is only supported by certain models."


async def test_detail_that_the_model_cannot_honour_is_refused():
    """NVIDIA's models have no input for it; `high` is what they do anyway."""
    model = Model(ImageSupport())

    [image] = await read(images.part(images.png(), detail="high"), model=model)
    param, code, message = await refusal(images.part(images.png(), detail="low"), model=model)

    assert image.detail == "high"
    assert (f"{PLACE}.image_url.detail", "unsupported_value") == (param, code)
    assert "'auto', 'high'" in message


def named(uuid: str, image: bytes | None = None) -> dict[str, Any]:
    given = None if image is None else {"url": images.data_url(image)}
    return {"type": "image_url", "image_url": given, "uuid": uuid}


async def test_uuid_alone_keeps_the_detail():
    """Of the request that sent the data. A model that does not know it refuses the image."""
    reader = ImageReader(ImageLimits())
    sent = {**images.part(images.png(), detail="low"), "uuid": "u"}
    await read(sent, reader=reader)

    [again] = await read(named("u"), reader=reader)
    param, code, _ = await refusal(named("u"), reader=reader, model=Model(ImageSupport()))

    assert (again.detail, again.param) == ("low", f"{PLACE}.uuid")
    assert (param, code) == (f"{PLACE}.uuid", "unsupported_value")


async def test_uuid_of_another_caller_names_nothing(request_context):
    """One caller neither reads the other's image nor replaces it."""
    reader = ImageReader(ImageLimits())
    first, second = caller(key("a")), caller(key("b"))
    request_context.principal = first
    await read(named("u", images.png()), reader=reader)

    request_context.principal = second
    param, *_ = await refusal(named("u"), reader=reader)
    [other] = await read(named("u", images.gif()), reader=reader)
    request_context.principal = first
    [own] = await read(named("u"), reader=reader)

    assert param == f"{PLACE}.uuid"
    assert (other.format, own.format) == ("gif", "png")


async def test_stored_images_are_bounded_and_the_oldest_is_dropped():
    reader = ImageReader(ImageLimits(max_stored_image_bytes=3 * 1200))
    for uuid in ("a", "b", "c"):
        await read(named(uuid, images.png()), reader=reader)
    await read(named("a"), reader=reader)  # used lately

    await read(named("d", images.png()), reader=reader)

    assert (await refusal(named("b"), reader=reader))[0] == f"{PLACE}.uuid"
    assert len(await read(named("a"), named("c"), named("d"), reader=reader)) == 3


async def test_part_without_data_and_uuid_is_refused():
    param, code, _ = await refusal({"type": "image_url"})

    assert (f"{PLACE}.image_url", "missing_required_parameter") == (param, code)


async def test_known_image_costs_no_second_look_at_its_header(monkeypatch):
    """Only its text is hashed."""
    looks = []
    monkeypatch.setattr(READ_HEADER, lambda read: looks.append(1) or read_header(read))
    reader = ImageReader(ImageLimits())

    for _ in range(3):
        await read(images.part(images.png()), reader=reader)

    assert len(looks) == 1


async def test_large_images_are_hashed_off_the_event_loop(monkeypatch):
    """Small ones are not: a thread costs more."""
    threads = []
    monkeypatch.setattr(
        READ_HEADER, lambda read: threads.append(threading.current_thread()) or read_header(read)
    )
    large = images.png(before=images.chunk(b"tEXt", bytes(1_000_000)))

    await read(images.part(images.png()))
    await read(images.part(large))

    main = threading.main_thread()
    assert [thread is main for thread in threads] == [True, False]


@pytest.mark.slow
async def test_loop_stays_free_while_megabytes_are_hashed():
    """The longest pause is far below the time that the work takes."""
    large = images.png(before=images.chunk(b"tEXt", bytes(15_000_000)))
    loop = asyncio.get_running_loop()
    pauses_s: list[float] = []

    async def tick() -> None:
        while True:
            before_s = loop.time()
            await asyncio.sleep(0)
            pauses_s.append(loop.time() - before_s)

    ticking = asyncio.create_task(tick())
    began_s = loop.time()
    await read(images.part(large), max_image_bytes=2**25)
    took_s = loop.time() - began_s
    ticking.cancel()

    assert sorted(pauses_s)[-2] < max(0.02, took_s / 2)


@pytest.mark.parametrize(
    ("target", "tokens", "expanded"),
    [
        ((7,), (1, 7, 1), [5, 1, 7, 1, 6, 1, 7, 1]),
        ((7,), None, [5, 7, 6, 7]),  # they depend on the image
        ((), (1,), [5, 7, 6, 7]),  # an engine that does not tell its placeholder
        ((6, 7), (1, 1, 1), [5, 7, 1, 1, 1]),
        ((7, 8), (1,), [5, 7, 6, 7]),
    ],
)
def test_placeholders_are_replaced_by_the_tokens_of_any_image(target, tokens, expanded):
    support = ImageSupport(target=target, tokens=tokens)
    assert list(support.expanded([5, 7, 6, 7])) == expanded
