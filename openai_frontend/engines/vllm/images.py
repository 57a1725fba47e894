"""Prepares prompts with images for the engine: replaces their placeholders."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from openai_frontend.engines.vllm.media import MediaCache, ProcessedItem, max_items, start_cache
from openai_frontend.engines.vllm.media_worker import ImageRequest
from openai_frontend.generation import EmbedRequest, GenerationRequest
from openai_frontend.modalities import ImageInput, positions

MODALITY = "image"

Request = GenerationRequest | EmbedRequest


class PromptImages:
    """The images of one model. Not thread-safe: use it on the event loop."""

    def __init__(self, engine: Any, cache: MediaCache, facts: Mapping[str, Any]) -> None:
        """`facts` are those of `media_worker`."""
        self.cache = cache
        self._target: list[int] = facts["target"]
        self._max_tokens: int = facts["max_tokens"]
        self._tokens: list[int] | None = facts["tokens"]
        self._placeholder = _placeholder(engine.model_config)
        self._tokenizer = engine.input_processor.tokenizer
        self._max_model_len = engine.model_config.max_model_len
        self._max_embeds = engine.input_processor.mm_encoder_cache_size
        self._max_images = max_items(engine, MODALITY)

    def facts(self) -> dict[str, Any]:
        """As in `ModelFacts.images`."""
        return {
            "max_per_request": self._max_images,
            "max_tokens_per_image": self._max_tokens,
            "placeholder": self._placeholder,
            "target": self._target,
            "tokens": self._tokens,
        }

    def prepare(self, request: Request) -> Any:
        """Return vLLM's input, or a task that returns it if an image is new.

        Raises ValueError if the request has too many images, or other than it has placeholders.
        """
        if len(request.images) > self._max_images:
            raise ValueError(f"image: at most {self._max_images}, not {len(request.images)}")
        ids = request.prompt_token_ids
        if ids is not None:
            self._check_count(ids, request.images)
            if found := self.cache.known([_key(image) for image in request.images]):
                return self._prompt(request, ids, found)
        return self.cache.preparing(request.request_id, self._prepare(request))

    async def _prepare(self, request: Request) -> Any:
        if (ids := request.prompt_token_ids) is None:
            encoded: list[int] = await asyncio.to_thread(
                self._tokenizer.encode, request.prompt or ""
            )
            ids = encoded
            self._check_count(ids, request.images)
        tasks = [
            asyncio.ensure_future(self._processed(index, image, request))
            for index, image in enumerate(request.images)
        ]
        try:
            return self._prompt(request, ids, await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def _processed(self, index: int, image: ImageInput, request: Request) -> ProcessedItem:
        size, low = (image.width, image.height), image.detail == "low"
        salt = request.cache_salt
        asked = ImageRequest(_key(image), image.digest, salt, *size, image.format, low)
        try:
            return await self.cache.processed(asked, [image.base64.encode()], request.request_id)
        except ValueError as error:
            raise ValueError(f"image[{index}]: {error}") from None

    def _check_count(self, ids: Sequence[int], images: Sequence[ImageInput]) -> None:
        found = len(positions(ids, self._target))
        if found != len(images):
            raise ValueError(
                f"image: {len(images)} images, but the prompt has {found} placeholders for images"
            )

    def _prompt(self, request: Request, ids: Sequence[int], images: Sequence[ProcessedItem]) -> Any:
        """vLLM's input: each placeholder is replaced by the tokens of its image."""
        from vllm.inputs.engine import mm_input
        from vllm.multimodal.inputs import PlaceholderRange

        given, expanded, ranges, end = list(ids), list[int](), [], 0
        for position, image in zip(positions(ids, self._target), images, strict=True):
            expanded += given[end:position]
            ranges.append(PlaceholderRange(len(expanded), len(image.token_ids), image.mask))
            expanded += image.token_ids
            end = position + len(self._target)
        expanded += given[end:]
        self._check_size(len(expanded), images)
        return mm_input(
            expanded,
            mm_kwargs={MODALITY: [image.item for image in images]},
            mm_hashes={MODALITY: [image.key for image in images]},
            mm_placeholders={MODALITY: ranges},
            cache_salt=request.cache_salt,
        )

    def _check_size(self, tokens: int, images: Sequence[ProcessedItem]) -> None:
        if tokens >= self._max_model_len:
            raise ValueError(
                f"the prompt has {tokens} tokens with its images; the model's context length is "
                f"{self._max_model_len} tokens"
            )
        if (most := max(image.embeds for image in images)) > self._max_embeds:
            raise ValueError(f"image: at most {self._max_embeds} tokens per image, not {most}")


def _key(image: ImageInput) -> str:
    """Of vLLM's caches too: the same image at another size is another one."""
    return f"{image.digest}-low" if image.detail == "low" else image.digest


def _placeholder(model_config: Any) -> str | None:
    """What the model's own prompts contain for an image; None if vLLM does not know it."""
    from vllm.model_executor.model_loader import get_model_cls

    found: str | None = get_model_cls(model_config).get_placeholder_str(MODALITY, 1)
    return found


def image_tokens(prompt: Any) -> int:
    """Tokens of vLLM's input that stand for images."""
    ranges: Any = prompt["mm_placeholders"][MODALITY]
    return sum(each.get_num_embeds() for each in ranges)


def start(engine: Any, parameters: Mapping[str, str]) -> PromptImages:
    """Start the processes and wait until they are ready: see `start_cache`.

    Raises RuntimeError also for a model whose prompts have no placeholder for an image.
    """
    cache, facts = start_cache(engine, MODALITY, parameters)
    if not facts["target"]:
        cache.close()
        raise RuntimeError("images: prompts of this model have no placeholder for an image")
    return PromptImages(engine, cache, facts)
