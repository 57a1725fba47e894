"""Images and audio by URL take the path of data URLs once they are fetched."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from openai_frontend.admission.memory_budget import MemoryBudget
from openai_frontend.errors import InvalidRequest, ServerOverloaded
from openai_frontend.media.fetch import MediaFetcher, Network, is_public
from openai_frontend.media.modalities import AudioSupport, ImageInput, ImageSupport
from openai_frontend.serving.request import media_parts
from openai_frontend.serving.request.audio import AudioFileReader, AudioLimits
from openai_frontend.serving.request.images import ImageLimits, ImageReader
from openai_frontend.serving.request.media import Media, MediaReader
from openai_frontend.serving.request.media_parts import Fetching, MediaPart, NamedMedia
from tests import audio, images
from tests.fast.serving.test_images import Model

HOST = "media.example.com"
PNG = images.png(4, 5)
WAV = audio.wav(["one"])
SIGHT_AND_HEARING = Model(ImageSupport(), audio=AudioSupport())

Answer = Callable[[httpx.Request], Awaitable[httpx.Response]]


class Gateway:
    """A reader of media that fetches from a server that answers so."""

    def __init__(
        self, answer: Answer, *, addresses: tuple[str, ...] = ("8.8.8.8",), timeout_s: float = 60.0
    ) -> None:
        self.asked: list[str] = []
        self.results: list[str] = []
        self.memory = MemoryBudget(10**9)
        self._answer = answer

        async def resolve(host: str) -> tuple[str, ...]:
            return addresses

        network = Network(
            transport=httpx.MockTransport(self._handle),
            resolve=resolve,
            is_allowed=is_public,
            timeout_s=timeout_s,
        )
        fetcher = MediaFetcher([HOST], network, self.results.append)
        named, fetching = NamedMedia(10**6), Fetching(fetcher, self.memory)
        self._reader = MediaReader(
            ImageReader(ImageLimits(max_image_bytes=20_000), None, named, fetching),
            AudioFileReader(AudioLimits(max_audio_bytes=50_000), None, named, fetching),
        )

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        return await self._answer(request)

    async def read(self, *parts: dict[str, Any], model: Model = SIGHT_AND_HEARING) -> Media:
        sent = [MediaPart(each, f"messages[0].content[{i}]") for i, each in enumerate(parts)]
        return await self._reader.read(sent, model)

    async def refusal(self, *parts: dict[str, Any], **more: Any) -> tuple[Any, Any, str]:
        with pytest.raises(InvalidRequest) as refused:
            async with asyncio.timeout(60):
                await self.read(*parts, **more)
        return refused.value.param, refused.value.code, refused.value.message


def answering(body: bytes, **options: Any) -> Answer:
    async def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(options.get("status", 200), stream=httpx.ByteStream(body))

    return answer


def image(path: str = "/a.png", *, host: str = HOST, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"https://{host}{path}"}, **more}


def sound(path: str = "/a.wav") -> dict[str, Any]:
    return {"type": "audio_url", "audio_url": {"url": f"https://{HOST}{path}"}}


async def test_fetched_image_equals_one_that_was_sent():
    """Hash, size, format and field: engines see no difference, so caches serve both."""
    by_url = await Gateway(answering(PNG)).read(image())
    by_data = await Gateway(answering(b"")).read(images.part(PNG))

    assert by_url == by_data
    assert by_url.images[0].param == "messages[0].content[0].image_url.url"


async def test_fetched_audio_equals_audio_that_was_sent():
    data = f"data:audio/wav;base64,{base64.b64encode(WAV).decode()}"

    by_url = await Gateway(answering(WAV)).read(sound())
    by_data = await Gateway(answering(b"")).read({"type": "audio_url", "audio_url": {"url": data}})

    assert by_url == by_data


async def test_items_keep_their_order_and_options():
    """Fetched ones between others, whatever comes first; `image_url` may be the URL itself."""

    async def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/1":
            await asyncio.sleep(0.02)
        return httpx.Response(200, stream=httpx.ByteStream(images.png(int(request.url.path[1:]))))

    gateway = Gateway(answer)
    plain = {"type": "image_url", "image_url": f"https://{HOST}/3"}
    low = {"type": "image_url", "image_url": {"url": f"https://{HOST}/1", "detail": "high"}}

    media = await gateway.read(low, images.part(images.png(2)), plain)

    assert [(each.width, each.detail) for each in media.images] == [
        (1, "high"), (2, "auto"), (3, "auto"),
    ]  # fmt: skip
    assert media.images[2].param == "messages[0].content[2].image_url"


REFUSED = [
    f"https://other.example.com/{HOST}",
    f"http://{HOST}/a.png",
    f"https://{HOST}:444/",
    f"https://user@{HOST}/",
    "https://127.0.0.1/",
    f"HTTPS://{HOST}./",
]


@pytest.mark.parametrize("url", REFUSED)
async def test_urls_that_are_not_allowed_get_one_error(url: str) -> None:
    """It names the field and what is allowed, not the hosts; nothing is fetched."""
    gateway = Gateway(answering(PNG))

    refused = await gateway.refusal(
        image(), {"type": "image_url", "image_url": {"url": url}}, image("/b")
    )

    place = "messages[0].content[1].image_url.url"
    assert refused == (
        place,
        "invalid_image_url",
        f"Invalid '{place}'. This server fetches only https URLs, on port 443 and without a user "
        "name, of the host names that its operator allows. Send the image itself, as a "
        "base64-encoded data URL (e.g. 'data:image/png;base64,aW1nIGJ5dGVzIGhlcmU=').",
    )
    assert gateway.asked == []


async def test_files_are_never_fetched():
    gateway = Gateway(answering(PNG))
    for url in ("file:///etc/passwd", "FILE:///etc/passwd", "/etc/passwd", f"ftp://{HOST}/"):
        part = {"type": "image_url", "image_url": {"url": url}}
        assert "not a data URL" in (await gateway.refusal(part))[2]
    assert gateway.asked == []


async def refused_connection(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("[Errno 111] Connection refused")


async def reset(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadError("reset")


async def never(request: httpx.Request) -> httpx.Response:
    await asyncio.Event().wait()
    raise AssertionError


async def compressed(request: httpx.Request) -> httpx.Response:
    stream = httpx.ByteStream(b"\x1f\x8b")
    return httpx.Response(200, headers={"content-encoding": "gzip"}, stream=stream)


FAILURES: dict[str, tuple[Gateway, str]] = {
    "refused": (Gateway(refused_connection), "unreachable"),
    "reset": (Gateway(reset), "unreachable"),
    "private": (Gateway(answering(PNG), addresses=("10.0.0.1",)), "refused_address"),
    "mixed": (Gateway(answering(PNG), addresses=("8.8.8.8", "::1")), "refused_address"),
    "none": (Gateway(answering(PNG), addresses=()), "unreachable"),
    "slow": (Gateway(never, timeout_s=0.05), "timeout"),
    "redirect": (Gateway(answering(b"", status=302)), "status"),
    "not found": (Gateway(answering(PNG, status=404)), "status"),
    "compressed": (Gateway(compressed), "compressed"),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_failures_look_alike(name: str) -> None:
    """A client learns nothing about the server's network; the metrics know the reason."""
    gateway, result = FAILURES[name]

    assert await gateway.refusal(image()) == (
        "messages[0].content[0].image_url.url",
        "invalid_image_url",
        "Invalid 'messages[0].content[0].image_url.url'. The image could not be fetched. Its "
        "server must have a public address and answer within 10 seconds with status 200, without "
        "a redirect and without compression. Send the image itself, as a base64-encoded data URL "
        "(e.g. 'data:image/png;base64,aW1nIGJ5dGVzIGhlcmU=').",
    )
    assert gateway.results == [result]


async def test_audio_errors_name_audio():
    """With the code of audio."""
    param, code, message = await Gateway(refused_connection).refusal(sound())

    assert (param, code) == ("messages[0].content[0].audio_url.url", "invalid_audio_url")
    assert "The audio could not be fetched." in message


@pytest.mark.parametrize(
    ("part", "code", "limit"),
    [(image(), "image_too_large", 20_000), (sound(), "invalid_audio", 50_000)],
)
async def test_items_have_the_limit_of_their_kind(part: Any, code: str, limit: int) -> None:
    gateway = Gateway(answering(b"a" * (limit + 1)))

    _, found, message = await gateway.refusal(part)

    assert found == code
    assert f"more than {limit} bytes; the limit is {limit} bytes" in message


async def test_other_data_is_refused_as_if_it_was_sent():
    """By its first bytes: what a server says about its type does not count."""
    page = Gateway(answering(b"<html>"))
    huge = Gateway(answering(images.png(16_385, 1)))

    assert (await page.refusal(image()))[1] == "invalid_image_format"
    assert (await huge.refusal(image()))[1] == "image_too_large"


async def test_nothing_is_fetched_for_a_request_that_is_refused_anyway():
    """A model without images, too many, and an invalid item after a URL."""
    gateway = Gateway(answering(PNG))

    await gateway.refusal(image(), model=Model(None))
    await gateway.refusal(*[image()] * 17)
    await gateway.refusal(image(), {"type": "image_url", "image_url": {"url": "data:,"}})

    assert gateway.asked == []


async def test_a_failure_ends_the_other_fetches():
    ended = asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/fails":
            return httpx.Response(404, stream=httpx.ByteStream(b""))
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    gateway = Gateway(answer)

    param, _, _ = await gateway.refusal(image("/waits"), image("/fails"))

    assert param == "messages[0].content[1].image_url.url"
    assert ended.is_set()


async def test_fetched_bytes_count_as_request_body_until_its_task_ends():
    gateway = Gateway(answering(PNG))
    read = asyncio.Event()
    end = asyncio.Event()

    async def serve() -> None:
        await gateway.read(image("/a"), image("/b"))
        read.set()
        await end.wait()

    task = asyncio.create_task(serve())
    await read.wait()
    assert gateway.memory.used_bytes == 2 * len(base64.b64encode(PNG))
    end.set()
    await task

    await asyncio.sleep(0)
    assert gateway.memory.used_bytes == 0


async def test_no_memory_is_a_503():
    """As for a body; what the request has taken is given back."""
    gateway = Gateway(answering(b"a" * 9000))
    gateway.memory._max_bytes = 12_000 + 100

    async def serve() -> None:
        with pytest.raises(ServerOverloaded, match="max-buffered-body-bytes"):
            await gateway.read(image(), image())

    await asyncio.create_task(serve())
    await asyncio.sleep(0)
    assert gateway.memory.used_bytes == 0
    assert sorted(gateway.results) == ["aborted", "fetched"]


async def test_a_request_fetches_so_much_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short request could otherwise take all memory."""
    monkeypatch.setattr(media_parts, "MAX_FETCHED_BYTES", 23_999)
    gateway = Gateway(answering(b"a" * 9000))

    param, code, message = await gateway.refusal(image(), image())

    assert (param, code) == ("messages", "invalid_value")
    assert "more than 23999 bytes of base64 in all" in message


async def test_uuid_names_what_was_fetched():
    """Later requests need no URL; the same uuid with other data is refused."""
    bodies = [PNG, images.png(9, 9)]

    async def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=httpx.ByteStream(bodies.pop(0)))

    gateway = Gateway(answer)
    await gateway.read(image(uuid="u"))

    named = await gateway.read({"type": "image_url", "image_url": None, "uuid": "u"})
    assert isinstance(named.images[0], ImageInput)
    assert named.images[0].width == 4
    assert len(gateway.asked) == 1

    assert "names another image" in (await gateway.refusal(image(uuid="u")))[2]
