"""Prepares prompts with images for the engine: a cache of processed images, and one run of the
processor for requests that need the same image at the same time.

An image is known by its digest, so that a known one costs no decoding and no processor run. The
placeholders of a prompt are replaced here. vLLM's own renderer would do all of it in one thread of
this process, and decode each image again to find it in its cache.
"""

import asyncio
import contextlib
import os
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openai_frontend.engines.engine import EngineError, Sample
from openai_frontend.engines.vllm import versions
from openai_frontend.engines.vllm.image_pool import ImagePool, ProcessedImage
from openai_frontend.engines.vllm.image_worker import ImageRequest
from openai_frontend.generation import EmbedRequest, GenerationRequest, ImageInput
from openai_frontend.triton import error_codes

CACHE_MIB = 512
MAX_RUNNING = 512  # images that wait or are processed
MAX_RESENDS = 3
MODALITY = "image"

Request = GenerationRequest | EmbedRequest


@dataclass(frozen=True, slots=True)
class _Known:
    """A processed image, as the engine gets it."""

    key: str
    item: Any  # vLLM's MultiModalKwargsItem: tensors on the buffers that came from the worker
    token_ids: list[int]
    mask: Any  # bool tensor: which tokens stand for the image; None: all
    image_tokens: int
    nbytes: int


class PromptImages:
    """The images of one model. Not thread-safe: use it on the event loop."""

    def __init__(self, engine: Any, pool: ImagePool, facts: Any, *, cache_bytes: int) -> None:
        """`facts` are those of `pool.start`."""
        from vllm.multimodal.inputs import MultiModalKwargsItem
        from vllm.v1.serial_utils import MsgpackDecoder

        self._pool = pool
        self._target: list[int] = facts["target"]
        self._max_tokens: int = facts["max_tokens"]
        self._placeholder = _placeholder(engine.model_config)
        self._tokenizer = engine.input_processor.tokenizer
        self._max_model_len = engine.model_config.max_model_len
        self._max_embeds = engine.input_processor.mm_encoder_cache_size
        self._max_images = max_images(engine)
        self._decoder = MsgpackDecoder(MultiModalKwargsItem)
        self._cache: OrderedDict[str, _Known] = OrderedDict()  # oldest first
        self._cached_bytes, self._cache_bytes = 0, cache_bytes
        self._running: dict[str, asyncio.Task[_Known]] = {}
        self._waiters: Counter[str] = Counter()
        self._preparing: dict[str, asyncio.Task[Any]] = {}
        self._hits = self._misses = 0

    def facts(self) -> dict[str, Any]:
        """As in `ModelFacts.images`."""
        return {
            "max_per_request": self._max_images,
            "max_tokens_per_image": self._max_tokens,
            "placeholder": self._placeholder,
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
            if all(_key(image) in self._cache for image in request.images):
                self._hits += len(request.images)
                found = [self._known(_key(image)) for image in request.images]
                return self._prompt(request, ids, found)
        task = asyncio.get_running_loop().create_task(self._prepare(request))
        self._preparing[request.request_id] = task
        task.add_done_callback(lambda _: self._preparing.pop(request.request_id, None))
        return task

    def cancel(self, request_id: str) -> None:
        """Stop preparing a request. An image that no other request needs leaves the queue."""
        if (task := self._preparing.get(request_id)) is not None:
            task.cancel()

    def close(self) -> None:
        """Kill the processes."""
        self._pool.close()

    def samples(self) -> Iterator[Sample]:
        """Images of requests, and those that needed no processor run, under vLLM's names."""
        yield "vllm:mm_cache_queries_total", {}, float(self._hits + self._misses)
        yield "vllm:mm_cache_hits_total", {}, float(self._hits)

    async def _prepare(self, request: Request) -> Any:
        if (ids := request.prompt_token_ids) is None:
            encoded: list[int] = await asyncio.to_thread(
                self._tokenizer.encode, request.prompt or ""
            )
            ids = encoded
            self._check_count(ids, request.images)
        tasks = [
            asyncio.ensure_future(self._processed(index, image, request.cache_salt))
            for index, image in enumerate(request.images)
        ]
        try:
            return self._prompt(request, ids, await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def _processed(self, index: int, image: ImageInput, salt: str | None) -> _Known:
        key = _key(image)
        if key in self._cache:
            self._hits += 1
            return self._known(key)
        running = self._running.get(key)
        if running is None:
            running = self._start(key, image, salt)
        else:
            self._hits += 1
        self._waiters[key] += 1
        try:
            return await asyncio.shield(running)
        except ValueError as error:
            raise ValueError(f"image[{index}]: {error}") from None
        finally:
            self._waiters[key] -= 1
            if not self._waiters[key]:
                del self._waiters[key]
                self._forget(key, running)  # at once: a new request must not wait for it
                running.cancel()  # no effect once it has ended

    def _start(self, key: str, image: ImageInput, salt: str | None) -> asyncio.Task[_Known]:
        if len(self._running) >= MAX_RUNNING:
            message = f"{MAX_RUNNING} images wait to be processed. Retry when some are done."
            raise EngineError(message, error_codes.UNAVAILABLE)
        self._misses += 1
        size = image.width, image.height
        wanted = ImageRequest(key, image.digest, salt, *size, image.format, image.detail == "low")
        task = asyncio.get_running_loop().create_task(self._run(wanted, image.base64))
        self._running[key] = task
        return task

    async def _run(self, wanted: ImageRequest, base64: str) -> _Known:
        try:
            processed = await asyncio.wrap_future(self._pool.submit(wanted, base64))
        finally:
            self._forget(wanted.key, asyncio.current_task())
        return self._store(wanted.key, processed)

    def _forget(self, key: str, task: asyncio.Task[Any] | None) -> None:
        if self._running.get(key) is task:
            del self._running[key]

    def _store(self, key: str, processed: ProcessedImage) -> _Known:
        import torch

        mask = None if processed.mask is None else torch.tensor(processed.mask, dtype=torch.bool)
        item = self._decoder.decode(processed.frames)
        known = _Known(
            key, item, processed.token_ids, mask, processed.image_tokens, processed.nbytes
        )
        self._cache[key] = known
        self._cached_bytes += known.nbytes
        while self._cached_bytes > self._cache_bytes:
            _, oldest = self._cache.popitem(last=False)
            self._cached_bytes -= oldest.nbytes
        return known

    def _known(self, key: str) -> _Known:
        self._cache.move_to_end(key)
        return self._cache[key]

    def _check_count(self, ids: Sequence[int], images: Sequence[ImageInput]) -> None:
        found = len(_positions(ids, self._target))
        if found != len(images):
            raise ValueError(
                f"image: {len(images)} images, but the prompt has {found} placeholders for images"
            )

    def _prompt(self, request: Request, ids: Sequence[int], images: Sequence[_Known]) -> Any:
        """vLLM's input: each placeholder is replaced by the tokens of its image."""
        from vllm.inputs.engine import mm_input
        from vllm.multimodal.inputs import PlaceholderRange

        given, expanded, ranges, end = list(ids), list[int](), [], 0
        for position, image in zip(_positions(ids, self._target), images, strict=True):
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

    def _check_size(self, tokens: int, images: Sequence[_Known]) -> None:
        if tokens >= self._max_model_len:
            raise ValueError(
                f"the prompt has {tokens} tokens with its images; the model's context length is "
                f"{self._max_model_len} tokens"
            )
        if (most := max(image.image_tokens for image in images)) > self._max_embeds:
            raise ValueError(f"image: at most {self._max_embeds} tokens per image, not {most}")


def _key(image: ImageInput) -> str:
    """Of vLLM's caches too: the same image at another size is another one."""
    return f"{image.digest}-low" if image.detail == "low" else image.digest


def _positions(ids: Sequence[int], target: Sequence[int]) -> list[int]:
    """Where the target begins, without overlaps."""
    first, size = target[0], len(target)
    found, start = [], 0
    try:
        while True:
            start = ids.index(first, start)
            if size == 1 or list(ids[start : start + size]) == target:
                found.append(start)
                start += size
            else:
                start += 1
    except ValueError:
        return found


def max_images(engine: Any) -> int:
    """Images per request; 0 if the model does not take any."""
    if not engine.input_processor.supports_mm_inputs:
        return 0
    from vllm.multimodal import MULTIMODAL_REGISTRY

    info = MULTIMODAL_REGISTRY.get_processing_info(engine.model_config)
    return int(info.allowed_mm_limits.get(MODALITY, 0))


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
    """Start the processes and wait until they are ready; `parameters` are those of config.pbtxt.

    Raises ValueError for a parameter that is not a number, RuntimeError if a process fails.
    """
    processes = _parameter(parameters, "image_processes", min(4, os.cpu_count() or 1))
    cache_mib = _parameter(parameters, "image_cache_mib", CACHE_MIB)
    pool = ImagePool(processes=processes)
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(pool.close)
        facts = pool.start(engine.model_config)
        if not facts["target"]:
            raise RuntimeError("images: prompts of this model have no placeholder for an image")
        made = PromptImages(engine, pool, facts, cache_bytes=cache_mib << 20)
        on_failure.pop_all()
    return made


def _parameter(parameters: Mapping[str, str], name: str, default: int) -> int:
    given = parameters.get(name, str(default))
    if not (given.isascii() and given.isdigit() and int(given) > 0):
        raise ValueError(f"config.pbtxt: parameters: {name}: {given!r} is not a positive integer")
    return int(given)


class SentImages:
    """Leaves out images that the engine's cache has, and sends them again if it has lost them.

    vLLM's sender cache mirrors the engine's, if both get the same items in the same order. They
    differ after a request that was not sent, or if the engine's cache was reset.
    """

    def __init__(self, engine: Any) -> None:
        cache = engine.input_processor.renderer.mm_processor_cache
        self._cache = cache if isinstance(cache, versions.image_sender_cache()) else None
        self.unanswered: dict[str, tuple[Any, list[Any], int]] = {}  # request, data, resends
        self.resends = 0  # total

    def leave_out(self, request: Any) -> None:
        """Remove from a request what the engine has. Call it right before sending."""
        if self._cache is None:
            return
        data = [feature.data for feature in request.mm_features]
        for feature in request.mm_features:
            feature.data, _ = self._cache.get_and_update_item((feature.data, []), feature.mm_hash)
        self.unanswered[request.request_id] = request, data, 0

    def lost(self, output: Any) -> Any:
        """Return the request with all its data if the engine lacks some of it, else None. The first
        output of a request makes its data unnecessary.
        """
        found = self.unanswered.pop(output.request_id, None)
        missing = output.mm_cache_miss_hashes
        if found is None or not missing or self._cache is None:
            return None
        request, data, resends = found
        if resends == MAX_RESENDS:
            return None
        for mm_hash in missing:
            self._cache.invalidate(mm_hash)
        for feature, item in zip(request.mm_features, data, strict=True):
            self._cache.get_and_update_item((item, []), feature.mm_hash)
            feature.data = item
        self.unanswered[request.request_id] = request, data, resends + 1
        self.resends += 1
        return request
