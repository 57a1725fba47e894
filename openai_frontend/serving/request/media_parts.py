"""The common part of images and audio in messages: their parts, base64 text, and vLLM's `uuid`s.

The base64 text is hashed before anything is decoded.
"""

import asyncio
import hashlib
import hmac
import re
import secrets
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic_ns
from typing import Any, Generic, NamedTuple, TypeVar, cast

from openai_frontend.admission.memory_budget import MemoryBudget
from openai_frontend.errors import InvalidRequest, ServerOverloaded
from openai_frontend.media.fetch import (
    TIMEOUT_S,
    FetchesBusy,
    FetchFailed,
    FetchTooLarge,
    MediaFetcher,
    MediaURL,
)
from openai_frontend.media.modalities import AudioFile, ImageInput
from openai_frontend.media.stages import Stage
from openai_frontend.request_context.context import current_record, current_request
from openai_frontend.serving.admission.model import Describes

# Type of a part -> the kind of its media, as chat templates know it
KINDS: Mapping[str, str] = {"image_url": "image", "input_audio": "audio", "audio_url": "audio"}

_HEAD = 256  # characters, in which a data URL's comma must come
_STEP = 256 * 1024  # characters: hashing and checking them hold the GIL for 0.3 ms
_AT_ONCE = 512 * 1024  # characters of all items of a kind; more are hashed in a thread
MAX_FETCHED_BYTES = 64 * 1024 * 1024  # base64 of all items of a kind that a request fetches
_OVERHEAD_BYTES = 1024  # of a stored item, however small it is

_NOT_BASE64 = bytes(range(128)).translate(
    None, b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
)
_BASE64 = bytes(each for each in range(128) if each not in _NOT_BASE64)
_MIME = re.compile(r"[a-z0-9.+-]{1,64}/[a-z0-9.+-]{1,64}")

Item = TypeVar("Item", ImageInput, AudioFile)


class MediaPart(NamedTuple):
    """A part with media as it was sent, and its path, such as `messages[0].content[1]`."""

    part: Mapping[str, Any]
    place: str


class Base64Text(NamedTuple):
    """An item with data: its base64 text starts at `start` of `text`."""

    text: str
    start: int
    option: str  # the image's detail, or the format that the request states
    param: str


class RemoteItem(NamedTuple):
    """An item on another server, from which it may be fetched."""

    url: MediaURL
    option: str  # as in Base64Text
    param: str


class Fetching(NamedTuple):
    """The fetcher of items, and the memory budget in which they count."""

    fetcher: MediaFetcher
    memory: MemoryBudget


class FetchedMemory:
    """The memory of what a request has fetched. It counts like the request's body, until the task
    that serves the request ends.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        """To be made by the request's task."""
        self._budget = budget
        self._bytes = 0
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("FetchedMemory needs a running task")
        task.add_done_callback(self._give_back)

    def take(self, length: int) -> None:
        """Raises InvalidRequest beyond the limit of a request, ServerOverloaded beyond all."""
        if self._bytes + length > MAX_FETCHED_BYTES:
            message = (
                "Invalid 'messages': what is fetched by URL has more than "
                f"{MAX_FETCHED_BYTES} bytes of base64 in all. Send fewer URLs, or smaller media."
            )
            raise InvalidRequest(message, param="messages")
        self._budget.take(length)
        self._bytes += length

    def _give_back(self, task: object) -> None:
        self._budget.give_back(self._bytes)


class PartReader(ABC, Generic[Item]):
    """Reads the parts of one kind. One per process: it knows the items that clients have named."""

    plural: str  # what the items are called
    urls: "DataURLs"

    def __init__(
        self,
        named: "NamedMedia",
        on_read: Callable[[str, Sequence[Item]], None] | None,
        max_bytes: int,
        fetching: Fetching | None,
    ) -> None:
        """`on_read` gets the items of each request, with the model's name in Triton.
        `max_bytes` limits one item. `fetching`: None if nothing is fetched.
        """
        self._fetching = fetching
        self._max_bytes = max_bytes
        self._named = named
        self._on_read: Callable[[str, Sequence[Item]], None] | None = on_read

    @abstractmethod
    def most(self, model: Describes) -> int | None:
        """How many items a request to the model may have; None if it takes none."""

    @abstractmethod
    def sent(self, each: MediaPart, model: Describes) -> Base64Text | RemoteItem | None:
        """Where the data is; None if the part has only a `uuid`. Raises InvalidRequest."""

    @abstractmethod
    def items(self, sent: Sequence[Base64Text | Item]) -> tuple[Item, ...]:
        """The items, checked. Blocks for 1 ms per MB that is new. May run in a thread."""

    @abstractmethod
    def oversized(self, size: str, param: str) -> InvalidRequest:
        """The error for an item of this many bytes, a number or `more than` one."""

    @abstractmethod
    def stored(self, item: Item, model: Describes) -> Item:
        """An item that a part names. Raises InvalidRequest if the model does not take it."""

    async def read(self, parts: Sequence[MediaPart], model: Describes) -> tuple[Item, ...]:
        """The items in the order of the parts. Raises InvalidRequest for the first that is invalid
        or beyond a limit.
        """
        if (most := self.most(model)) is None:
            raise unsupported_media(parts[0])
        if len(parts) > most:
            raise _too_many(self.plural, most, len(parts))
        inputs = [self._sent_or_named(each, model) for each in parts]
        local = cast(list[Base64Text | Item], inputs)
        if self._fetching is not None and any(isinstance(each, RemoteItem) for each in inputs):
            local = await self._fetched(inputs, self._fetching)
        characters = sum(len(each.text) for each in local if isinstance(each, Base64Text))
        if characters <= _AT_ONCE:
            items = self.items(local)
        else:
            items = await asyncio.to_thread(self.items, local)
        for each, item in zip(parts, items, strict=True):
            if uuid := each.part.get("uuid"):
                self._named.bind(current_request().tenant, uuid, item, f"{each.place}.uuid")
        if self._on_read is not None:
            self._on_read(model.model_name, items)
        return items

    def at(self, url: str, option: str, param: str) -> Base64Text | RemoteItem:
        """The item of a URL. Raises InvalidRequest for one that is neither data nor allowed."""
        if self._fetching is not None and is_remote(url):
            allowed = self._fetching.fetcher.allowed(url)
            if allowed is None:
                raise self.urls.not_allowed(param)
            return RemoteItem(allowed, option, param)
        text = Base64Text(url, self.urls.start(url, param), option, param)
        self.check_bytes(text)
        return text

    def check_bytes(self, item: Base64Text) -> None:
        """Raises InvalidRequest beyond the limit of one item."""
        size = (len(item.text) - item.start) * 3 // 4
        if size > self._max_bytes:
            raise self.oversized(str(size), item.param)

    async def _fetched(
        self, inputs: Sequence[Base64Text | RemoteItem | Item], fetching: Fetching
    ) -> list[Base64Text | Item]:
        """The items with those that were remote, which are fetched at the same time. The first
        that fails ends the others.
        """
        memory = FetchedMemory(fetching.memory)
        fetches = {
            at: asyncio.create_task(self._fetch(each, fetching.fetcher, memory))
            for at, each in enumerate(inputs)
            if isinstance(each, RemoteItem)
        }
        try:
            await asyncio.gather(*fetches.values())
        finally:
            for each in fetches.values():
                each.cancel()
            await asyncio.wait(fetches.values())
        return [
            fetches[at].result() if isinstance(each, RemoteItem) else each
            for at, each in enumerate(inputs)
        ]

    async def _fetch(
        self, item: RemoteItem, fetcher: MediaFetcher, memory: FetchedMemory
    ) -> Base64Text:
        began_ns = monotonic_ns()
        accept = f"{self.urls.what}/*"
        try:
            text = await fetcher.fetch(
                item.url, accept=accept, max_bytes=self._max_bytes, take=memory.take
            )
        except FetchTooLarge:
            raise self.oversized(f"more than {self._max_bytes}", item.param) from None
        except FetchesBusy:
            message = "Too many media URLs are being fetched at the moment. Retry later."
            raise ServerOverloaded(message) from None
        except FetchFailed:
            raise self.urls.not_fetched(item.param) from None
        if (record := current_record()) is not None:
            stage = Stage(f"{self.urls.what} fetch", began_ns, monotonic_ns())
            record.media_stages.append(stage)
        return Base64Text(text, 0, item.option, item.param)

    def _sent_or_named(self, each: MediaPart, model: Describes) -> Base64Text | RemoteItem | Item:
        if (sent := self.sent(each, model)) is not None:
            return sent
        kind = each.part["type"]
        if uuid := each.part.get("uuid"):
            # Each kind has names of its own, so what is found is of this reader's kind
            item = cast(
                Item, self._named.get(current_request().tenant, uuid, KINDS[kind], each.place)
            )
            return self.stored(item, model)
        param = f"{each.place}.{kind}"
        message = f"Missing required parameter: '{param}'."
        raise InvalidRequest(message, param=param, code="missing_required_parameter")


def unsupported_media(first: MediaPart) -> InvalidRequest:
    """For a model that takes only text, in OpenAI's words."""
    message = f"Invalid content type. {first.part['type']} is only supported by certain models."
    return InvalidRequest(message, param=f"{first.place}.type", code="unsupported_value")


def _too_many(plural: str, most: int, count: int) -> InvalidRequest:
    message = (
        f"Invalid 'messages': too many {plural}. Expected at most {most} {plural} per request "
        f"with this model, but got {count}. Send fewer."
    )
    return InvalidRequest(message, param="messages", code="array_above_max_length")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataURLs:
    """Data URLs of one kind of media, and how errors name them."""

    what: str  # such as "image"
    example: str  # the beginning of one
    code: str  # of errors
    formats: Sequence[str] = ()  # MIME subtypes; empty: any
    unsupported: str = ""  # the error for another subtype
    unsupported_code: str = ""

    def start(self, url: str, param: str) -> int:
        """The offset of the base64 text. Raises InvalidRequest for any other URL."""
        head, comma, _ = url[:_HEAD].partition(",")
        scheme = head[:8].lower()
        if is_remote(url):
            raise self._invalid(param, f"This server fetches nothing. {self._advice}")
        mime, *options = head[5:].lower().split(";")
        if not scheme.startswith("data:") or not comma:
            raise self.error(param, "a value that is not a data URL")
        if not options or options[-1].strip() != "base64":
            raise self.error(param, "a data URL without ';base64'")
        if not mime.startswith(f"{self.what}/"):
            shown = f" '{mime}'" if _MIME.fullmatch(mime) else ""
            raise self.error(param, f"unsupported MIME type{shown}")
        if self.formats and mime.partition("/")[2] not in self.formats:
            raise InvalidRequest(self.unsupported, param=param, code=self.unsupported_code)
        if len(url) == len(head) + 1:
            raise self.error(param, "empty base64-encoded bytes")
        return len(head) + 1

    def not_allowed(self, param: str) -> InvalidRequest:
        """The URL of another server that must not be fetched; does not say which may."""
        return self._invalid(
            param,
            "This server fetches only https URLs, on port 443 and without a user name, of the "
            f"host names that its operator allows. {self._advice}",
        )

    def not_fetched(self, param: str) -> InvalidRequest:
        """One error for every reason: the reason could tell a client about the server's network."""
        return self._invalid(
            param,
            f"The {self.what} could not be fetched. Its server must have a public address and "
            f"answer within {TIMEOUT_S:g} seconds with status 200, without a redirect and without "
            f"compression. {self._advice}",
        )

    @property
    def _advice(self) -> str:
        return f"Send the {self.what} itself, as a base64-encoded data URL (e.g. '{self.example}')."

    def error(self, param: str, got: str) -> InvalidRequest:
        """A URL that contains something else."""
        article = "an" if self.what[0] in "aeiou" else "a"
        return self._invalid(
            param,
            f"Expected a base64-encoded data URL with {article} {self.what} MIME type "
            f"(e.g. '{self.example}'), but got {got}.",
        )

    def _invalid(self, param: str, reason: str) -> InvalidRequest:
        return InvalidRequest(f"Invalid '{param}'. {reason}", param=param, code=self.code)


def is_remote(url: str) -> bool:
    """Whether the data is on another server."""
    return url[:8].lower().startswith(("http:", "https:"))


class NotBase64(ValueError):
    """The text is not valid base64."""


def digest(base64: str) -> str:
    """Hex SHA-256, which releases the GIL for long pieces. Raises NotBase64."""
    found = hashlib.sha256()
    for piece in _pieces(base64):
        found.update(piece)
    return found.hexdigest()


def check_base64(base64: str) -> None:
    """Raise NotBase64 unless the whole text is. Decoders that skip a wrong character would see
    other bytes behind it.
    """
    body = base64.rstrip("=")
    if len(base64) % 4 or len(base64) - len(body) > 2:
        raise NotBase64
    for piece in _pieces(body):
        if piece.translate(None, _BASE64):
            raise NotBase64


def _pieces(base64: str) -> Iterator[bytes]:
    if not base64.isascii():
        raise NotBase64
    for start in range(0, len(base64), _STEP):
        yield base64[start : start + _STEP].encode("ascii")


class NamedMedia:
    """The images and audio that clients have named by a `uuid`, least recently used first.

    A name belongs to one caller, one kind and one content: engines never see it.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._secret = secrets.token_bytes(32)
        self._items: OrderedDict[bytes, ImageInput | AudioFile] = OrderedDict()

    def get(self, tenant: str, uuid: str, kind: str, place: str) -> ImageInput | AudioFile:
        """Raises InvalidRequest if the caller has not sent this item, or not lately."""
        key = self._key(tenant, uuid, kind)
        item = self._items.get(key)
        if item is None:
            param = f"{place}.uuid"
            message = (
                f"Invalid '{param}': no {kind} with this uuid is stored. Send it with its data."
            )
            raise InvalidRequest(message, param=param, code="invalid_value")
        self._items.move_to_end(key)
        return replace(item, param=f"{place}.uuid")

    def bind(self, tenant: str, uuid: str, item: ImageInput | AudioFile, param: str) -> None:
        """Store the item under the name. Raises InvalidRequest if it names another one."""
        kind = "image" if isinstance(item, ImageInput) else "audio"
        key = self._key(tenant, uuid, kind)
        known = self._items.get(key)
        if known is not None and known.digest != item.digest:
            message = f"Invalid '{param}': this uuid names another {kind}. Use a new uuid."
            raise InvalidRequest(message, param=param, code="invalid_value")
        if known is not None or _size(item) > self._max_bytes:
            return
        self._items[key] = item
        self._bytes += _size(item)
        while self._bytes > self._max_bytes:
            _, evicted = self._items.popitem(last=False)
            self._bytes -= _size(evicted)

    def _key(self, tenant: str, uuid: str, kind: str) -> bytes:
        return hmac.digest(self._secret, f"{tenant}\0{kind}\0{uuid}".encode(), "sha256")


def _size(item: ImageInput | AudioFile) -> int:
    return _OVERHEAD_BYTES + len(item.base64)
