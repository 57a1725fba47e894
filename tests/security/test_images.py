"""Nothing of an image is decoded that is not within the limits by its header (CVE-2026-34755,
CVE-2026-22773, CVE-2026-22778), names of images belong to their key, and placeholders come from the
template alone (CVE-2026-44222). The engine is a mock: it reports what reaches engines.
"""

import base64
import json
import re
from typing import Any

import pytest

from tests import images
from tests.api.routers.mock_gateway import RawResponse
from tests.security.guarded import CHAT, EMBEDDINGS, TENANTS, Guarded, check_refused

ALICE, BOB = TENANTS


def ask(guarded: Guarded, *parts: Any, key: str | None = None, **fields: Any) -> RawResponse:
    chat = {"messages": [{"role": "user", "content": list(parts)}]}
    body = {"model": "vision", "max_tokens": 20, **chat, **fields}
    headers = () if key is None else (f"authorization: Bearer {key}",)
    if key is None:
        return guarded.post(CHAT, body)
    return guarded.ask(f"POST {CHAT}", json.dumps(body).encode(), *headers, key=None)


def seen(response: RawResponse) -> str:
    """What the engine got of the images."""
    assert response.status == 200, response.body
    content: str = json.loads(response.body)["choices"][0]["message"]["content"]
    return content


def code(response: RawResponse, echoed: str = "") -> str:
    check_refused(response, 400, echoed=echoed)
    found: str = json.loads(response.body)["error"]["code"]
    return found


LARGE = images.segment(0xC0, b"\x08\xff\xff\xff\xff\x01\x01\x11\x00")
BOMBS = {
    "50,000 x 50,000 PNG": (images.png(50_000, 50_000), "image_too_large"),
    "65,535 x 65,535 JPEG": (images.jpeg(65_535, 65_535), "image_too_large"),
    "65,535 x 65,535 GIF": (images.gif(65_535, 65_535), "image_too_large"),
    "GIF frame": (images.gif(1, 1, frame=(60_000, 60_000)), "image_too_large"),
    "16,384 x 16,384 WebP": (images.webp(16_384, 16_384, kind=b"VP8X"), "image_too_large"),
    "1 : 20,000": (images.png(1, 20_000), "image_too_large"),
    "1 : 201": (images.png(1, 201), "image_too_large"),
    "two sizes": (images.jpeg(before=LARGE), "image_parse_error"),
    "two PNG sizes": (images.png(before=images.png(60_000, 60_000)[8:33]), "image_parse_error"),
    "no pixels": (images.png(0, 0), "image_parse_error"),
    "truncated": (images.jpeg()[:20], "image_parse_error"),
    "segments": (images.jpeg(before=images.segment(0xFE, b"") * 100_000), "image_parse_error"),
    "polyglot": (b"%PDF-1.7\n" + images.png(), "invalid_image_format"),
    "archive": (b"PK\x03\x04" + images.png(), "invalid_image_format"),
    "page": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "invalid_image_format"),
    "JPEG 2000": (b"\x00\x00\x00\x0cjP  \r\n\x87\n", "invalid_image_format"),
    "TIFF": (b"II*\x00" + bytes(100), "invalid_image_format"),
    "EPS": (b"%!PS-Adobe-3.0 EPSF-3.0", "invalid_image_format"),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_by_their_header(guarded, name):
    """Whatever their label says."""
    data, expected = BOMBS[name]

    assert code(ask(guarded, images.part(data))) == expected


def test_image_of_megabytes_of_metadata_is_taken_by_its_size(guarded):
    """ICC, EXIF and text are skipped, not read."""
    profile = images.segment(0xE2, bytes(60_000)) * 6
    text = images.chunk(b"iTXt", bytes(300_000))

    assert seen(ask(guarded, images.part(images.jpeg(before=profile)))).startswith("jpeg 2x3")
    assert seen(ask(guarded, images.part(images.png(before=text)))).startswith("png 2x3")


def test_17_images_and_10_000_frames_are_refused(guarded):
    """By their number, before any is read. Each is valid."""
    for count in (17, 1_000):
        assert code(ask(guarded, *[images.part(images.png())] * count)) == "array_above_max_length"
    frames = base64.b64encode(images.jpeg()).decode()
    video = {"type": "video_url", "video_url": {"url": "data:video/jpeg;base64," + frames}}
    assert code(ask(guarded, video)) == "unsupported_value"


def test_pixels_of_a_request_are_limited_in_all(guarded):
    part = images.part(images.png(5000, 5000))

    assert code(ask(guarded, *[part] * 5)) == "image_too_large"


def test_choices_of_a_large_image_are_limited(guarded):
    """Each choice is a request of its own, with its own copy of the image."""
    large = images.part(images.png(before=images.chunk(b"tEXt", bytes(700_000))))

    assert seen(ask(guarded, large, n=2)).startswith("png 2x3")
    assert code(ask(guarded, large, n=128)) == "integer_above_max_value"


REFUSED = [
    {"type": "image_embeds", "image_embeds": "gASVBQAAAAAAAABLKi4="},
    {"type": "audio_embeds", "audio_embeds": "gASVBQAAAAAAAABLKi4="},
    {"type": "video_embeds", "video_embeds": {"a": "gASVBQAAAAAAAABLKi4="}},
    {"type": "prompt_embeds", "prompt_embeds": "gASVBQAAAAAAAABLKi4="},
    {"type": "file", "file": {"file_data": images.data_url(images.png())}},
]


@pytest.mark.parametrize("part", REFUSED, ids=lambda part: part["type"])
def test_other_media_and_tensors_are_refused_by_name(guarded, part):
    response = ask(guarded, part)

    assert code(response) == "unsupported_value"
    assert part["type"] in json.loads(response.body)["error"]["message"]


def test_numpy_files_are_no_images(guarded):
    data = b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"

    assert code(ask(guarded, images.part(data))) == "invalid_image_format"


def named(uuid: str, image: bytes | None = None) -> dict[str, Any]:
    given = None if image is None else {"url": images.data_url(image)}
    return {"type": "image_url", "image_url": given, "uuid": uuid}


def test_a_name_of_one_key_means_nothing_to_another(guarded):
    """Bob neither gets Alice's image nor replaces it, whatever he sends under its name."""
    uuid = "u1-of-alice"
    alices = seen(ask(guarded, named(uuid, images.png(4, 4)), key=ALICE))

    assert code(ask(guarded, named(uuid), key=BOB)) == "invalid_value"
    assert seen(ask(guarded, named(uuid, images.gif(5, 5)), key=BOB)).startswith("gif 5x5")
    assert seen(ask(guarded, named(uuid), key=ALICE)) == alices
    assert code(ask(guarded, named(uuid, images.gif(5, 5)), key=ALICE)) == "invalid_value"
    assert seen(ask(guarded, named(uuid), key=BOB)).startswith("gif 5x5")


def test_keys_with_caches_of_their_own_share_no_processed_image(guarded):
    """An engine finds images by their digest, which depends on the key's salt."""
    part = images.part(images.png(7, 7))

    digests = [seen(ask(guarded, part, key=key)).split()[-1] for key in (ALICE, BOB, ALICE)]

    assert digests[0] != digests[1]
    assert digests[0] == digests[2]


def test_a_name_cannot_leave_its_namespace(guarded):
    """Neither with a separator, nor with another key's name, nor by its length."""
    ask(guarded, named("x", images.png(4, 4)), key=ALICE)

    for uuid in ("alice\0x", "../x", "tenant0/x", "\0x", " x", "X", "x" * 256):
        assert code(ask(guarded, named(uuid), key=BOB), uuid) == "invalid_value"
    assert code(ask(guarded, named("x" * 257), key=BOB)) == "string_above_max_length"


PLACEHOLDERS = ("<image>", "<|vision|>", "<|vision|><image>", "<image>" * 16)


@pytest.mark.parametrize("text", PLACEHOLDERS)
@pytest.mark.parametrize("role", ["user", "system", "assistant", "tool"])
def test_placeholders_in_text_are_text(guarded, role, text):
    """In texts, tool results and names: one image arrives, and one placeholder."""
    message = {"role": role, "content": f"a {text} b", "name": text, "tool_call_id": text}
    chat = [message, {"role": "user", "content": [images.text(text), images.part(images.png())]}]

    response = ask(guarded, messages=chat)

    assert seen(response).startswith("png 2x3")
    usage = json.loads(response.body)["usage"]
    assert usage["prompt_tokens_details"]["image_tokens"] == 16


@pytest.mark.parametrize("text", PLACEHOLDERS)
def test_placeholders_in_prompts_are_refused(guarded, text):
    """They have no image: text of a completion or an embedding, or token ids."""
    for path, fields in (
        ("/v1/completions", {"prompt": text}),
        ("/v1/completions", {"prompt": [303, 304]}),
        ("/v1/completions", {"prompt": [[1, 304, 2]]}),
        (EMBEDDINGS, {"input": [text, "a"]}),
        (EMBEDDINGS, {"input": [304, 1]}),
    ):
        response = guarded.post(path, {"model": "vision", **fields})
        assert code(response, text) == "invalid_value", (path, fields)


HEAP = re.compile(r"0x[0-9a-f]{8,}|BytesIO|PIL|torch|cannot identify")


def test_messages_are_our_own(guarded):
    """PIL's tells an address of the heap (CVE-2026-22778)."""
    for data, _ in BOMBS.values():
        response = ask(guarded, images.part(data))
        assert not HEAP.search(response.body.decode())


def test_many_large_images_at_once_leave_the_gateway_as_it_was(guarded):
    """Bodies count against their budget, and nothing is decoded: `unharmed` checks the memory."""
    part = images.part(images.png(before=images.chunk(b"tEXt", bytes(700_000))))
    body = json.dumps({"model": "vision", "messages": [{"role": "user", "content": [part]}]})
    for _ in range(50):
        assert guarded.ask(f"POST {CHAT}", body.encode()).status == 200
