"""Audio in chats: what arrives at the engine, what the response counts, and what is refused. The
engine is a mock that describes the files it got: format, characters of base64 and digest.
"""

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests import audio, images, mock_models
from tests.docs.documented_commands import BLOCK
from tests.gateway_process import ROOT, GatewayProcess

honours, accepts, refuses = pytest.mark.honours, pytest.mark.accepts, pytest.mark.refuses
FIELD = "chat.messages.user.content.input_audio"

ONE, TWO = audio.wav(["one"]), audio.wav(["two", "three"])
MP3 = audio.file(audio.spoken(["four"]), "MP3")
PLACE = "messages[0].content[0]"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """`hears` takes up to 4 files, and images; `deaf` takes images alone."""
    folder = tmp_path_factory.mktemp("audio")
    mock_models.write_with_media(folder / "models", "hears")
    mock_models.write_with_images(folder / "models", "deaf")
    with GatewayProcess(folder / "models", folder / "log", "--max-audio-bytes=100000") as process:
        process.wait_until_ready()
        yield process


def user(*parts: Any) -> Any:
    return [{"role": "user", "content": list(parts)}]


def heard(client: openai.OpenAI, *parts: Any, **more: Any) -> list[str]:
    """What reached the engine, without digests and sizes of audio."""
    answer = client.chat.completions.create(model="hears", messages=user(*parts), **more)
    content = answer.choices[0].message.content or ""
    return [each.rpartition(" ")[0] for each in content.split("; ")]


def described(data: bytes, format: str = "wav") -> str:
    return f"{format} {-(-len(data) // 3) * 4}"


@honours(FIELD, f"{FIELD}.data", f"{FIELD}.format")
def test_audio_and_images_reach_the_engine_in_order(client, gateway):
    """Through OpenAI's own client; interleaved in the prompt as they were sent."""
    parts = [
        audio.part(ONE), images.text("a"), images.part(images.png(4, 5)), audio.part(MP3, "mp3"),
    ]  # fmt: skip

    assert heard(client, *parts) == ["png 4x5 auto", described(ONE), described(MP3, "mp3")]
    rendered = httpx.post(
        f"{gateway.url}/v1/chat/completions/render",
        json={"model": "hears", "messages": user(*parts)},
    )
    assert "<|audio|>a<|vision|><image><|audio|>" in rendered.json()["prompt"]


def test_documented_example_runs(gateway, tmp_path, monkeypatch, capsys):
    """docs/multimodal.md, with this server's port and model."""
    page = (ROOT / "docs" / "multimodal.md").read_text()
    _, code = [text for language, text in BLOCK.findall(page) if language == "python"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "question.wav").write_bytes(ONE)
    code = code.replace("http://127.0.0.1:9000", gateway.url).replace("qwen2-audio", "hears")

    exec(code, {})  # noqa: S102  our own page

    description, tokens = capsys.readouterr().out.splitlines()
    assert (description.rpartition(" ")[0], tokens) == (described(ONE), "10")


@accepts(
    f"{FIELD}.prompt_cache_breakpoint",
    f"{FIELD}.prompt_cache_breakpoint.mode",
    f"{FIELD}.prompt_cache_breakpoint.ttl",
)
def test_cache_breakpoint_of_audio_does_not_change_the_answer(client):
    part = audio.part(ONE)
    part["input_audio"]["prompt_cache_breakpoint"] = {"mode": "explicit", "ttl": "30m"}

    assert heard(client, part) == [described(ONE)]


@honours("chat.messages.content.audio_url", "chat.messages.content.audio_url.url")
def test_vllms_audio_url_is_the_same_audio(client):
    """As an object or a plain string, of any format; the first bytes decide, not the label."""
    flac = audio.file(audio.spoken(["five"]), "FLAC")
    plain = audio.url_part(ONE)

    assert heard(
        client,
        audio.url_part(flac, "audio/mpeg"),
        {"type": "audio_url", "audio_url": plain["audio_url"]["url"]},
    ) == [described(flac, "flac"), described(ONE)]


def test_uuid_stands_for_the_audio_that_was_sent_with_it(client):
    """A name of audio is none of an image; other audio under a known name is refused."""
    again = {"type": "input_audio", "uuid": "a-1"}
    assert heard(client, audio.part(ONE, uuid="a-1")) == [described(ONE)]
    assert heard(client, again, audio.part(TWO)) == [described(ONE), described(TWO)]

    for part in ({"type": "image_url", "uuid": "a-1"}, audio.part(TWO, uuid="a-1")):
        with pytest.raises(openai.BadRequestError) as refused:
            heard(client, part)
        assert (refused.value.param, refused.value.code) == (f"{PLACE}.uuid", "invalid_value")


@pytest.mark.parametrize("stream", [False, True])
def test_usage_counts_the_tokens_of_audio(client, stream):
    """They are part of the prompt's tokens. A chat without audio has no such count."""
    for parts, expected in (
        ([audio.part(ONE), audio.part(TWO), images.part(images.png())], (20, 16)),
        ([images.text("a")], (None, None)),
    ):
        answer = client.chat.completions.create(
            model="hears", messages=user(*parts), stream=stream,
            **({"stream_options": {"include_usage": True}} if stream else {}),
        )  # fmt: skip
        details = (list(answer)[-1].usage if stream else answer.usage).prompt_tokens_details
        assert (details.audio_tokens, getattr(details, "image_tokens", None)) == expected


def test_models_state_capability_and_limits(gateway):
    listed = httpx.get(f"{gateway.url}/v1/models", timeout=60).json()["data"]
    found = {each["id"]: each for each in listed}

    assert found["deaf"]["input_audio"] is None
    assert [found[name]["capabilities"]["audio"] for name in ("hears", "deaf")] == [True, False]
    assert found["hears"]["input_audio"] == {
        "formats": ["flac", "mp3", "ogg", "wav"],
        "max_audio_files": 4,
        "max_audio_bytes": 100_000,
        "max_audio_seconds": 1500,
        "max_tokens_per_audio": 10,
    }


def test_tokens_have_one_placeholder_for_each_file(gateway):
    """As the engine gets them, before it expands the placeholders; the response says which."""
    chat = user(audio.part(ONE), images.text("a"), audio.part(TWO))
    asked = {"model": "hears", "messages": chat}
    counted = httpx.post(f"{gateway.url}/tokenize", json=asked).json()
    tokens = counted["tokens"]

    rendered = httpx.post(f"{gateway.url}/v1/chat/completions/render", json=asked).json()
    assert rendered["token_ids"] == tokens
    places = [f"messages[0].content[{at}].input_audio.data" for at in (0, 2)]
    assert counted["uncounted_media"] == rendered["uncounted_media"] == places
    text = httpx.post(f"{gateway.url}/detokenize", json={"model": "hears", "tokens": tokens})
    assert text.json()["prompt"].count("<|audio|>") == 2


LONG = audio.wav(["one"] * 7)  # 112,044 bytes
NOT_BASE64 = {"type": "input_audio", "input_audio": {"data": "@@@@", "format": "wav"}}
REFUSED = {
    "not base64": (NOT_BASE64, "input_audio.data", "expected base64-encoded audio"),
    "empty": (audio.part(b""), "input_audio.data", "['flac', 'mp3', 'ogg', 'wav']"),
    "another format": (audio.part(b"\0\0\0\x18ftypM4A "), "input_audio.data", "none of the supp"),
    "wrong label": (audio.part(MP3, "wav"), "input_audio.format", "the audio is mp3, not wav"),
    "too many bytes": (
        audio.part(LONG), "input_audio.data", "the limit is 100000 bytes per audio file",
    ),
    "no data": ({"type": "input_audio"}, "input_audio", "Missing required parameter"),
    "unknown label": (audio.part(ONE, "aiff"), "input_audio.format", "'wav'"),
    "another server": (
        {"type": "audio_url", "audio_url": {"url": "https://example.com/a.wav"}},
        "audio_url.url", "Send the audio itself, as a base64-encoded data URL",
    ),
    "an image": (
        {"type": "audio_url", "audio_url": images.data_url(images.png())},
        "audio_url", "Expected a base64-encoded data URL with an audio MIME type",
    ),
}  # fmt: skip


@refuses(f"{FIELD}.format", FIELD)
@pytest.mark.parametrize(("part", "field", "words"), REFUSED.values(), ids=REFUSED)
def test_unusable_audio_is_refused(client, part, field, words):
    """The error names the field, and the limit if there is one."""
    with pytest.raises(openai.BadRequestError) as refused:
        heard(client, part)

    assert refused.value.param == f"{PLACE}.{field}"
    assert words in refused.value.message


EMBEDDED = [
    f"embeddings.messages.content.{field}"
    for field in (
        "input_audio",
        "input_audio.data",
        "input_audio.format",
        "audio_url",
        "audio_url.url",
    )
]


def test_too_many_files_are_refused(client):
    with pytest.raises(openai.BadRequestError, match="at most 4 audio files") as refused:
        heard(client, *[audio.part(ONE)] * 5)
    assert (refused.value.param, refused.value.code) == ("messages", "array_above_max_length")


@refuses(*EMBEDDED)
def test_models_without_audio_say_so(client, gateway):
    """In OpenAI's words; embeddings take none."""
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="deaf", messages=user(audio.part(ONE)))
    words = "Invalid content type. input_audio is only supported by certain models."
    assert (refused.value.param, refused.value.code) == (f"{PLACE}.type", "unsupported_value")
    assert words in refused.value.message

    asked = {"model": "hears", "messages": user(audio.part(ONE))}
    response = httpx.post(f"{gateway.url}/v1/embeddings", json=asked)
    assert (response.status_code, response.json()["error"]["message"]) == (400, words)


def test_bytes_of_audio_are_counted(client, gateway):
    def counted() -> float:
        lines = httpx.get(f"{gateway.url}/metrics").text.splitlines()
        found = [each for each in lines if each.startswith("openai_frontend_audio_bytes_total")]
        return sum(float(each.split()[-1]) for each in found if 'model="hears"' in each)

    before = counted()
    heard(client, audio.part(ONE))

    assert 0 <= counted() - before - len(ONE) <= 2  # of padding
