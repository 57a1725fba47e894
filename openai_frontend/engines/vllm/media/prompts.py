"""Prepares prompts with images and audio files for the engine: replaces their placeholders."""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openai_frontend.engines.engine import Sample
from openai_frontend.engines.vllm.media.images import (
    MediaCache,
    ProcessedItem,
    max_items,
    start_cache,
)
from openai_frontend.engines.vllm.media.worker import AudioFileRequest, ImageRequest
from openai_frontend.generation import GenerationRequest
from openai_frontend.media.modalities import (
    AudioFile,
    AudioSupport,
    ImageInput,
    ImageSupport,
    positions,
)
from openai_frontend.pooling import EmbedRequest

IMAGE, AUDIO = "image", "audio"
AUDIO_SECONDS = "openai_frontend_audio_seconds_total"

Request = GenerationRequest | EmbedRequest
Item = ImageInput | AudioFile


@dataclass(frozen=True, slots=True)
class Modality:
    """Input of one kind of media: the model's support, its workers and its cache."""

    cache: MediaCache
    facts: Mapping[str, Any]  # of `media_worker`
    max_items: int  # per request
    placeholder: str | None  # in the model's own prompts; None if vLLM does not know it


class PromptMedia:
    """The media of one model's prompts. Not thread-safe: use it on the event loop."""

    def __init__(self, engine: Any, modalities: Mapping[str, Modality]) -> None:
        self._modalities = modalities
        self._tokenizer = engine.input_processor.tokenizer
        self._max_model_len = engine.model_config.max_model_len
        self._audio_s = 0.0  # of all prompts
        self._max_embeds = engine.input_processor.mm_encoder_cache_size

    @property
    def caches(self) -> list[MediaCache]:
        """The caches of all modalities."""
        return [each.cache for each in self._modalities.values()]

    def samples(self) -> Iterator[Sample]:
        """Statistics of the caches, and the seconds of audio in prompts."""
        if AUDIO in self._modalities:
            yield AUDIO_SECONDS, {"direction": "input"}, self._audio_s
        for cache in self.caches:
            yield from cache.samples()

    @property
    def images(self) -> ImageSupport | None:
        """None: prompts contain no images."""
        if (modality := self._modalities.get(IMAGE)) is None:
            return None
        return ImageSupport(
            max_per_request=modality.max_items,
            max_tokens_per_image=modality.facts["max_tokens"],
            placeholder=modality.placeholder,
            target=modality.facts["target"],
            tokens=modality.facts["tokens"],
        )

    @property
    def audio_files(self) -> AudioSupport | None:
        """None: prompts contain no audio."""
        if (modality := self._modalities.get(AUDIO)) is None:
            return None
        return AudioSupport(
            max_per_request=modality.max_items,
            max_seconds=modality.facts["max_seconds"],
            max_tokens_per_audio=modality.facts["max_tokens"],
            placeholder=modality.placeholder,
            target=modality.facts["target"],
            tokens=modality.facts["tokens"],
        )

    def prepare(self, request: Request) -> Any:
        """Return vLLM's input, or a task that returns it if some media is new.

        Raises ValueError if the request has too much media, or other than it has placeholders.
        """
        items = _items(request)
        for modality, given in items.items():
            most = self._taken(modality).max_items
            if len(given) > most:
                raise ValueError(f"{modality}: at most {most}, not {len(given)}")
        ids = request.prompt_token_ids
        if ids is not None:
            self._check_count(ids, items)
            if found := self._known(items):
                return self._prompt(request, ids, found)
        cache = self._taken(next(iter(items))).cache
        return cache.preparing(request.request_id, self._prepare(request, items))

    def _taken(self, modality: str) -> Modality:
        taken = self._modalities.get(modality)
        if taken is None:
            raise ValueError(f"{modality}: the model does not take it")
        return taken

    def _known(
        self, items: Mapping[str, Sequence[Item]]
    ) -> Mapping[str, Sequence[ProcessedItem]] | None:
        """The processed media, if all of it is known."""
        found = {}
        for modality, given in items.items():
            known = self._taken(modality).cache.known([_key(each) for each in given])
            if known is None:
                return None
            found[modality] = known
        return found

    async def _prepare(self, request: Request, items: Mapping[str, Sequence[Item]]) -> Any:
        if (ids := request.prompt_token_ids) is None:
            encoded: list[int] = await asyncio.to_thread(
                self._tokenizer.encode, request.prompt or ""
            )
            ids = encoded
            self._check_count(ids, items)
        tasks = {
            modality: [
                asyncio.ensure_future(self._processed(modality, index, each, request))
                for index, each in enumerate(given)
            ]
            for modality, given in items.items()
        }
        try:
            found = {modality: await asyncio.gather(*of) for modality, of in tasks.items()}
            return self._prompt(request, ids, found)
        finally:
            for of in tasks.values():
                for task in of:
                    task.cancel()

    async def _processed(
        self, modality: str, index: int, item: Item, request: Request
    ) -> ProcessedItem:
        asked = _asked(item, request.cache_salt)
        cache = self._taken(modality).cache
        # Embeddings have no spans
        caller_id = request.caller_id if isinstance(request, GenerationRequest) else ""
        try:
            return await cache.processed(asked, [item.base64.encode()], caller_id)
        except ValueError as error:
            raise ValueError(f"{modality}[{index}]: {error}") from None

    def _check_count(self, ids: Sequence[int], items: Mapping[str, Sequence[Item]]) -> None:
        for modality, taken in self._modalities.items():
            found, given = len(positions(ids, taken.facts["target"])), len(items.get(modality, ()))
            if found != given:
                what = "images" if modality == IMAGE else "audio files"
                raise ValueError(
                    f"{modality}: {given} {what}, but the prompt has {found} placeholders for"
                    f" {what}"
                )

    def _prompt(
        self, request: Request, ids: Sequence[int], found: Mapping[str, Sequence[ProcessedItem]]
    ) -> Any:
        """vLLM's input: each placeholder is replaced by the tokens of its item."""
        from vllm.inputs.engine import mm_input
        from vllm.multimodal.inputs import PlaceholderRange

        given, expanded, end = list(ids), list[int](), 0
        ranges: dict[str, list[Any]] = {modality: [] for modality in found}
        for position, modality, item in self._placed(ids, found):
            expanded += given[end:position]
            place = PlaceholderRange(len(expanded), len(item.token_ids), item.mask)
            ranges[modality].append(place)
            expanded += item.token_ids
            end = position + len(self._taken(modality).facts["target"])
        expanded += given[end:]
        self._check_size(len(expanded), found)
        self._audio_s += sum(item.seconds for item in found.get(AUDIO, ()))
        return mm_input(
            expanded,
            mm_kwargs={each: [item.item for item in items] for each, items in found.items()},
            mm_hashes={each: [item.key for item in items] for each, items in found.items()},
            mm_placeholders=ranges,
            cache_salt=request.cache_salt,
        )

    def _placed(
        self, ids: Sequence[int], found: Mapping[str, Sequence[ProcessedItem]]
    ) -> list[tuple[int, str, ProcessedItem]]:
        """The items with the positions of their placeholders, in the prompt's order."""
        placed = [
            (position, modality, item)
            for modality, items in found.items()
            for position, item in zip(
                positions(ids, self._taken(modality).facts["target"]), items, strict=True
            )
        ]
        return sorted(placed, key=lambda each: each[0])

    def _check_size(self, tokens: int, found: Mapping[str, Sequence[ProcessedItem]]) -> None:
        if tokens >= self._max_model_len:
            kinds = " and ".join("images" if each == IMAGE else "audio" for each in found)
            raise ValueError(
                f"context: This model's maximum context length is {self._max_model_len} tokens."
                f" However, the prompt has {tokens} tokens with its {kinds}."
            )
        for modality, items in found.items():
            if (most := max(item.embeds for item in items)) > self._max_embeds:
                raise ValueError(
                    f"{modality}: at most {self._max_embeds} tokens per item, not {most}"
                )


def _items(request: Request) -> Mapping[str, Sequence[Item]]:
    """The media of a request by modality, without those of which it has none."""
    audio = request.audio_files if isinstance(request, GenerationRequest) else ()
    items: dict[str, Sequence[Item]] = {IMAGE: request.images, AUDIO: audio}
    return {modality: given for modality, given in items.items() if given}


def _asked(item: Item, salt: str | None) -> ImageRequest | AudioFileRequest:
    """The worker's request, without the base64 text."""
    if isinstance(item, ImageInput):
        size, low = (item.width, item.height), item.detail == "low"
        return ImageRequest(_key(item), item.digest, salt, *size, item.format, low)
    limits = item.max_seconds, item.max_samples
    return AudioFileRequest(_key(item), item.digest, salt, item.format, *limits)


def _key(item: Item) -> str:
    """Cache key, also in vLLM's caches: the same image at another size has another key."""
    low = isinstance(item, ImageInput) and item.detail == "low"
    return f"{item.digest}-low" if low else item.digest


def media_tokens(prompt: Any, modality: str) -> int:
    """Tokens of vLLM's input that stand for media of this kind."""
    ranges: Any = prompt["mm_placeholders"].get(modality, ())
    return sum(each.get_num_embeds() for each in ranges)


def start(
    engine: Any, modalities: Sequence[str], parameters: Mapping[str, str]
) -> tuple[PromptMedia | None, dict[str, str]]:
    """Start the processes and wait until they are ready: see `start_cache`.

    Returns None if prompts can contain none of the modalities, and why not, by modality.
    """
    taken, failures = dict[str, Modality](), dict[str, str]()
    with contextlib.ExitStack() as on_failure:
        for modality in modalities:
            try:
                taken[modality] = each = _started(engine, modality, parameters)
                on_failure.callback(each.cache.close)
            except RuntimeError as error:
                failures[modality] = str(error)
        media = PromptMedia(engine, taken) if taken else None
        on_failure.pop_all()
    return media, failures


def _started(engine: Any, modality: str, parameters: Mapping[str, str]) -> Modality:
    """Raises RuntimeError also for a model whose prompts have no placeholder."""
    from vllm.model_executor.model_loader import get_model_cls

    cache, facts = start_cache(engine, modality, parameters)
    if not facts["target"]:
        cache.close()
        raise RuntimeError(f"prompts of this model have no placeholder for {modality}")
    placeholder = get_model_cls(engine.model_config).get_placeholder_str(modality, 1)
    return Modality(cache, facts, max_items(engine, modality), placeholder)
