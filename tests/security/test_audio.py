"""Audio from clients is decoded within limits, in processes, and a form is no way around CORS."""

import io
import json
from typing import Any

import numpy
import pytest
import soundfile

from tests import audio, images
from tests.api.routers.mock_gateway import RawResponse, request
from tests.security.guarded import CHAT, KEY, TENANTS, Guarded, check_refused

ROUTE = "/v1/audio/transcriptions"
FORM = f"content-type: multipart/form-data; boundary={audio.BOUNDARY}"


def send(guarded: Guarded, body: bytes, *headers: str, kind: str = FORM) -> RawResponse:
    key = f"authorization: Bearer {KEY}"
    return guarded.raw(request(f"POST {ROUTE}", key, kind, *headers, body=body))


def transcribe(guarded: Guarded, data: bytes) -> RawResponse:
    return send(guarded, audio.form(data, ("model", "hears")))


def refused(response: RawResponse, *statuses: int) -> tuple[str, str, str]:
    check_refused(response, *statuses)
    error = json.loads(response.body)["error"]
    return error["param"], error["code"], error["message"]


def silence(seconds: int, rate: int, channels: int, format: str, subtype: str) -> bytes:
    """A file that is small for its length."""
    written = io.BytesIO()
    block = numpy.zeros((rate, channels), numpy.float32)
    with soundfile.SoundFile(written, "w", rate, channels, format=format, subtype=subtype) as out:
        for _ in range(seconds):
            for start in range(0, rate, 4000):
                out.write(block[start : start + 4000])
    return written.getvalue()


def test_audio_within_the_limits_reaches_the_model(guarded):
    response = transcribe(guarded, audio.wav(["one"]))
    assert response.status == 200, response.body
    assert json.loads(response.body)["text"].startswith("8000 samples")


def test_hour_of_wav_is_refused_by_its_header(guarded):
    data = audio.wav_header(1_000, 1, 3600 * 2_000) + bytes(3600 * 2_000)
    param, code, message = refused(transcribe(guarded, data))
    assert (param, code) == ("file", "invalid_audio")
    assert "1500 s (max_audio_seconds): 3600.0 s" in message


@pytest.mark.slow
def test_opus_bomb_is_refused(guarded):
    """A kilobyte per second at most, and 26 minutes of it."""
    data = silence(1_560, 8_000, 1, "OGG", "OPUS")
    assert len(data) < 2_000_000
    param, code, message = refused(transcribe(guarded, data))
    assert (param, code) == ("file", "invalid_audio")
    assert "max_audio_seconds" in message


@pytest.mark.slow
def test_flac_bomb_of_many_channels_is_refused(guarded):
    data = silence(105, 192_000, 8, "FLAC", "PCM_16")
    assert len(data) < 2_000_000
    assert "samples" in refused(transcribe(guarded, data))[2]


def test_truncated_files_are_refused_or_transcribed_as_far_as_they_go(guarded):
    for format in ("WAV", "FLAC", "OGG", "MP3"):
        whole = audio.file(audio.spoken(["one"] * 4), format)
        for part in (0.02, 0.3, 0.9):
            response = transcribe(guarded, whole[: int(len(whole) * part)])
            assert response.status == 200 or refused(response)[0] == "file"


@pytest.mark.parametrize(
    "data", [b"", b"hello", b"GIF89a" + bytes(50), b"PK\x03\x04" + bytes(50), b"<svg/>"]
)
def test_what_is_no_audio_is_refused_by_its_first_bytes(guarded, data):
    assert refused(transcribe(guarded, data))[:2] == ("file", "invalid_file_format")


def test_playlist_or_text_that_names_files_is_not_opened(guarded):
    for data in (b"#EXTM3U\nfile:///etc/passwd\n", b"[playlist]\nFile1=http://127.0.0.1/\n"):
        assert refused(transcribe(guarded, data))[1] == "invalid_file_format"


def test_file_beyond_the_limit_of_bytes_is_a_413(guarded):
    response = transcribe(guarded, audio.wav_header(8_000, 1, 100) + bytes(26 * 1024 * 1024 + 9))
    param, code, message = refused(response, 413)
    assert code == "request_too_large"
    assert "26214400" in message or param is None


def test_text_model_refuses_audio(guarded):
    body = audio.form(audio.wav(["one"]), ("model", "mock"))
    assert refused(send(guarded, body))[:2] == ("model", "unsupported_model")


FORMS = {
    "truncated": audio.form(b"x", ("model", "hears"))[:-30],
    "no end": audio.form(b"x")[:-6],
    "no name": f"--{audio.BOUNDARY}\r\n\r\nx\r\n--{audio.BOUNDARY}--\r\n".encode(),
    "many fields": audio.form(b"x", *[(f"f{at}", "1") for at in range(100)]),
    "long header": (
        f"--{audio.BOUNDARY}\r\nX-A: {'a' * 3000}\r\nX-B: {'a' * 3000}\r\nX-C: {'a' * 3000}\r\n\r\n"
    ).encode(),
    "not UTF-8": audio.form(b"x")
    .replace(b'name="file"; filename="a.wav"', b'name="model"')
    .replace(b"\r\n\r\nx", b"\r\n\r\n\xff\xfe"),
    "garbage": b"\x00" * 5000,
}


@pytest.mark.parametrize("name", FORMS)
def test_malformed_form_is_refused(guarded, name):
    assert refused(send(guarded, FORMS[name]))[1] == "invalid_form"


def test_long_field_and_second_file_are_refused_by_name(guarded):
    long = audio.form(b"x", ("prompt", "a" * 100_000))
    assert refused(send(guarded, long))[0] == "prompt"
    assert refused(send(guarded, audio.form(b"x", ("model", "a"), ("model", "b"))))[0] == "model"
    other = audio.form(b"x").replace(b'name="file"', b'name="image"')
    assert refused(send(guarded, other))[0] == "image"
    assert refused(send(guarded, audio.form(None, ("model", "hears"))))[0] == "file"


def test_form_needs_a_boundary_and_json_is_no_form(guarded):
    body = audio.form(b"x", ("model", "hears"))
    assert (
        refused(send(guarded, body, kind="content-type: multipart/form-data"))[1] == "invalid_form"
    )
    assert send(guarded, b"{}", kind="content-type: application/json").status == 415
    key = f"authorization: Bearer {KEY}"
    chat = guarded.raw(request("POST /v1/chat/completions", key, FORM, body=body))
    assert chat.status == 415


def test_form_of_a_web_page_needs_an_authorization_header(guarded):
    """A page can send a form to any address, but this header only with leave."""
    body = audio.form(audio.wav(["one"]), ("model", "hears"))
    page = "origin: https://evil.example"
    without = guarded.raw(request(f"POST {ROUTE}", FORM, page, body=body))
    assert without.status in (401, 415)
    assert send(guarded, body, page).status == 200


def ask(guarded: Guarded, *parts: Any, key: str = KEY) -> RawResponse:
    """A chat with audio; the engine describes the files that it gets."""
    messages = [{"role": "user", "content": list(parts)}]
    body = json.dumps({"model": "vision", "max_tokens": 20, "messages": messages}).encode()
    return guarded.ask(f"POST {CHAT}", body, f"authorization: Bearer {key}", key=None)


def heard(response: RawResponse) -> str:
    assert response.status == 200, response.body
    content: str = json.loads(response.body)["choices"][0]["message"]["content"]
    return content


HOSTILE = {
    "polyglot": b"%PDF-1.7\n" + audio.wav(["one"]),
    "archive": b"PK\x03\x04" + audio.wav(["one"]),
    "playlist": b"#EXTM3U\nhttp://127.0.0.1/",
    "MP4": b"\x00\x00\x00\x18ftypM4A " + bytes(50),
    "IAMF": b"\x00\x00\x00\x20ftypiamf" + bytes(50),
    "matroska": b"\x1a\x45\xdf\xa3" + bytes(50),
    "AIFF": b"FORM\x00\x00\x00\x00AIFF",
    "image": images.webp(),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_other_files_in_chats_reach_no_decoder(guarded, name):
    """Whatever their label says: the first bytes decide."""
    for part in (audio.part(HOSTILE[name]), audio.url_part(HOSTILE[name])):
        assert refused(ask(guarded, part), 400)[1] == "invalid_file_format"


def test_a_name_of_audio_means_nothing_to_another_key(guarded):
    """Nor is it the name of an image. Keys with caches of their own share no digest."""
    alice, bob = TENANTS
    one, two = audio.wav(["one"]), audio.wav(["two"])
    again = {"type": "input_audio", "uuid": "sound-of-alice"}
    named = audio.part(one, uuid="sound-of-alice")
    alices = heard(ask(guarded, named, key=alice))

    assert refused(ask(guarded, again, key=bob), 400)[1] == "invalid_value"
    bobs = heard(ask(guarded, {**named, **audio.part(two)}, key=bob))
    assert heard(ask(guarded, again, key=alice)) == alices
    assert heard(ask(guarded, again, key=bob)) == bobs
    image = {"type": "image_url", "uuid": "sound-of-alice"}
    assert refused(ask(guarded, image, key=alice), 400)[1] == "invalid_value"
    assert heard(ask(guarded, audio.part(one), key=bob)) != alices


def test_placeholders_of_audio_come_from_the_template(guarded):
    """In clients' texts they stay text; in prompts they are refused."""
    parts = images.text("a <|audio|><|audio|> b"), audio.part(audio.wav(["one"]))

    assert heard(ask(guarded, *parts)).startswith("wav ")
    response = guarded.post("/v1/completions", {"model": "vision", "prompt": "<|audio|>"})
    assert refused(response, 400)[1] == "invalid_value"
