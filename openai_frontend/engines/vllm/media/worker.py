"""The work of the processes that decode and preprocess media, in `media/fork_server.py`.

It imports vLLM and makes the model's processor once, with the modality and vLLM's ModelConfig,
pickled.
"""

import base64
import binascii
import hashlib
import io
import pickle
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from time import monotonic_ns
from typing import Any, NamedTuple

from openai_frontend.media import audio, fork_server
from openai_frontend.media.fork_server import Refused
from openai_frontend.media.modalities import salted

LOW_DETAIL_SIDE = 512  # pixels of the longest edge
MAX_PIXELS = 25_000_000  # of an image without a checked size
_MAX_TOLD = 4096  # tokens of an image: facts are one message
# Modes that Pillow reduces without a filter, or (greyscale of 16 bits) not at all if they are large
_NOT_REDUCED = ("P", "1", "I", "I;16", "I;16B", "I;16L")
_WHITE = 255
_LEVELS = [round(level / 257) for level in range(1 << 16)]  # of 16 bits, in 8
_SIZES = ((64, 64), (640, 480), (300, 1200))  # pixels, of images whose tokens are compared
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
_SOUNDS_S = (1.0, 0.3)  # of audio whose tokens are compared
MIN_SECONDS = 0.1  # of an audio file, as for transcriptions

Outcome = tuple[dict[str, Any], Sequence[Any]]


class ImageRequest(NamedTuple):
    """A worker's request, without the base64 text."""

    key: str  # of the caches
    digest: str
    cache_salt: str | None
    width: int  # pixels; 0: unknown
    height: int
    format: str  # "": unknown
    low_detail: bool


class AudioRequest(NamedTuple):
    """A worker's request, without the samples."""

    key: str  # of the caches
    digest: str
    cache_salt: str | None


class AudioFileRequest(NamedTuple):
    """A worker's request, without the base64 text."""

    key: str  # of the caches
    digest: str
    cache_salt: str | None
    format: str  # "": unknown
    max_seconds: float  # the server's limits; a model may have a lower one
    max_samples: int  # of all channels


ItemRequest = ImageRequest | AudioRequest | AudioFileRequest


class _Processor:
    """The model's own processor, for one item at a time."""

    def __init__(self, modality: str, model_config: Any) -> None:
        from vllm.multimodal import MULTIMODAL_REGISTRY
        from vllm.v1.serial_utils import MsgpackEncoder

        self._modality = modality
        self._processor: Any = MULTIMODAL_REGISTRY.create_processor(model_config)
        self._encoder = MsgpackEncoder()
        self.info: Any = self._processor.info
        dummy = self._processor.dummy_inputs
        self._prompt: list[int] = self.info.ctx.tokenizer.encode(
            dummy.get_dummy_text({modality: 1}), add_special_tokens=False
        )
        length = model_config.max_model_len
        (self.largest,) = dummy.get_dummy_mm_data(length, {modality: 1}, {})[modality]

    def sample_rate(self) -> int:
        """Sample rate of the model's audio input, in Hz."""
        return int(self.info.data_parser.audio_resampler.target_sr)

    def apply(self, item: Any, key: str) -> Outcome:
        """Return the item's placeholder tokens, and the model's input as vLLM encodes it.

        `target` are the tokens of the model's own prompt that are replaced. `stages` have their
        begin and end in nanoseconds of the monotonic clock, which all processes share.
        """
        from vllm.multimodal.processing import ProcessorInputs, TimingContext

        began_ns, modality = monotonic_ns(), self._modality
        items = self.info.parse_mm_data({modality: [item]})
        inputs = ProcessorInputs(list(self._prompt), items, {modality: [key]})
        found = self._processor.apply(inputs, TimingContext(enabled=False))
        (place,) = found["mm_placeholders"][modality]
        (kwargs,) = found["mm_kwargs"][modality]
        # If a model has an encoder of its own, the encoder's prompt has the placeholder.
        ids = found.get("encoder_prompt_token_ids") or found["prompt_token_ids"]
        replaced = len(self._prompt) - (len(ids) - place.length)
        mask = None if place.is_embed is None else place.is_embed.tolist()
        outcome = {
            "target": self._prompt[place.offset : place.offset + replaced],
            "token_ids": ids[place.offset : place.offset + place.length],
            "mask": mask,
            "embeds": place.length if mask is None else sum(mask),
        }
        encoded = self._encoder.encode(kwargs)
        return {**outcome, "stages": {"preprocess": [began_ns, monotonic_ns()]}}, encoded


def prepare(data: bytes) -> tuple[dict[str, Any], fork_server.Work]:
    """Make the processor. Facts of images: `target`, the ids of a placeholder, `max_tokens` of an
    image, and `tokens`, which replace the placeholder; None if they depend on the image's size.
    Of audio in prompts the same, and `max_seconds`. Of a transcription model: `sample_rate` in Hz
    and `window_s`, the longest audio.
    """
    import torch

    torch.set_num_threads(1)  # the process forks
    modality, model_config = pickle.loads(data)  # noqa: S301  of our own parent
    processor = _Processor(modality, model_config)
    outcome, _ = processor.apply(processor.largest, "largest")
    if modality == "audio" and model_config.is_encoder_decoder:
        extractor = processor.info.get_feature_extractor()
        facts = {"sample_rate": extractor.sampling_rate, "window_s": extractor.chunk_length}
        return facts, lambda header, frames: _hear(processor, AudioRequest(*header), *frames)
    facts = {"target": outcome["target"], "max_tokens": outcome["embeds"]}
    largest = outcome["token_ids"]
    if modality == "audio":
        audio.prepare(b"")  # as `_import_decoders`
        rate = processor.sample_rate()
        max_s = len(processor.largest) / rate  # of the model's own dummy, which vLLM sizes it by
        facts |= {"tokens": _fixed_tokens(processor, largest, _sounds(rate)), "max_seconds": max_s}
        work = partial(_listen, processor, max_s)
        return facts, lambda header, frames: work(AudioFileRequest(*header), *frames)
    _import_decoders()
    facts["tokens"] = _fixed_tokens(processor, largest, _pictures())
    return facts, lambda header, frames: _see(processor, ImageRequest(*header), *frames)


def _pictures() -> Iterator[Any]:
    from PIL import Image

    return (Image.new("RGB", size) for size in _SIZES)


def _sounds(rate: int) -> Iterator[Any]:
    import numpy as np

    return ((np.zeros(int(seconds * rate)), rate) for seconds in _SOUNDS_S)


def _fixed_tokens(
    processor: _Processor, largest: list[int], others: Iterator[Any]
) -> list[int] | None:
    """The tokens of any item; None if others than the largest have other tokens."""
    if len(largest) > _MAX_TOLD:
        return None
    for at, item in enumerate(others):
        try:
            outcome, _ = processor.apply(item, f"other {at}")
        except Exception:  # noqa: BLE001  such an item may be refused
            return None
        if outcome["token_ids"] != largest:
            return None
    return largest


def _see(processor: _Processor, request: ImageRequest, text: Any) -> Outcome:
    began_ns = monotonic_ns()
    image = _decode(request, bytes(text))
    decoded_ns = monotonic_ns()
    size = f"{image.width} x {image.height}"
    outcome, frames = _applied(processor, image, request.key, f"an image of {size} pixels")
    outcome["stages"]["decode"] = [began_ns, decoded_ns]
    return outcome, frames


def _hear(processor: _Processor, request: AudioRequest, samples: Any) -> Outcome:
    import numpy as np

    _check_digest(request, samples)
    heard = np.frombuffer(samples, "<f4")
    if not np.isfinite(heard).all():
        raise Refused("samples must be finite numbers")
    rate = processor.info.get_feature_extractor().sampling_rate
    return _applied(processor, (heard, rate), request.key, f"audio of {len(heard):,} samples")


def _listen(
    processor: _Processor, model_max_s: float, request: AudioFileRequest, text: Any
) -> Outcome:
    began_ns = monotonic_ns()
    data, rate = _from_base64(request, bytes(text)), processor.sample_rate()
    if (format := request.format or audio.format_of(data)) is None:
        raise Refused(f"none of the formats {', '.join(sorted(audio.FORMATS))}")
    task = {
        "format": format,
        "rate": rate,
        "window_s": request.max_seconds + 1,  # it is not cut
        "max_seconds": request.max_seconds,
        "max_samples": request.max_samples,
        "model_max_seconds": model_max_s,
    }
    found, (samples,) = audio.decode(task, memoryview(data))
    if found["seconds"] < MIN_SECONDS:
        raise Refused(f"it is shorter than {MIN_SECONDS} s: {found['seconds']:.3f} s")
    decoded_ns = monotonic_ns()
    described = f"audio of {found['seconds']:.3f} s"
    outcome, frames = _applied(processor, (samples, rate), request.key, described)
    outcome["stages"]["decode"] = [began_ns, decoded_ns]
    return {**outcome, "seconds": found["seconds"]}, frames


def _from_base64(request: ImageRequest | AudioFileRequest, text: bytes) -> bytes:
    """Raises Refused, also if the text has another digest."""
    _check_digest(request, text)
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise Refused("not valid base64") from None


def _applied(processor: _Processor, item: Any, key: str, described: str) -> Outcome:
    try:
        return processor.apply(item, key)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  the processors of all models, with any message
        print(f"media processor failed: {type(error).__name__}", file=sys.stderr)  # noqa: T201
        raise Refused(f"the model cannot process {described}") from None


def _decode(request: ImageRequest, text: bytes) -> Any:
    """Return the image in RGB; transparent parts are white. Raises Refused."""
    from PIL import Image, ImageOps

    data = _from_base64(request, text)
    formats = (request.format.upper(),) if request.format else _FORMATS
    try:
        image = Image.open(io.BytesIO(data), formats=formats)
        _check_size(request, *image.size)
        if request.low_detail:
            image = _reduced(image)
        ImageOps.exif_transpose(image, in_place=True)  # without a copy if it is upright
        return _in_rgb(image)
    except (Refused, MemoryError):
        raise
    except Exception:  # noqa: BLE001  Pillow's messages may contain addresses
        named = request.format.upper() or "PNG, JPEG, GIF or WEBP"
        raise Refused(f"cannot be decoded as {named}") from None


def _check_digest(request: ItemRequest, data: Any) -> None:
    if salted(hashlib.sha256(data).hexdigest(), request.cache_salt) != request.digest:
        other = "another image" if isinstance(request, ImageRequest) else "other audio"
        raise Refused(f"its digest in media_info is that of {other}")


def _check_size(request: ImageRequest, width: int, height: int) -> None:
    if not request.width:
        if width * height > MAX_PIXELS:
            raise Refused(f"{width} x {height} pixels; the limit is {MAX_PIXELS:,} in total")
    elif (width, height) != (request.width, request.height):
        declared = f"{request.width} x {request.height}"
        raise Refused(f"{width} x {height} pixels, but media_info says {declared}")


def _reduced(image: Any) -> Any:
    """At most LOW_DETAIL_SIDE pixels at the longest edge."""
    from PIL import Image, ImageOps

    if image.mode in _NOT_REDUCED:
        ImageOps.exif_transpose(image, in_place=True)  # the image in RGB has no EXIF
        image = _in_rgb(image)
    image.thumbnail((LOW_DETAIL_SIDE, LOW_DETAIL_SIDE), Image.Resampling.LANCZOS)
    return image


def _in_rgb(image: Any) -> Any:
    from PIL import Image

    image.load()
    if image.mode.startswith("I"):
        image = _in_8_bits(image)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, (255, 255, 255))
        white.paste(image, mask=image.getchannel("A"))
        return white
    return image if image.mode == "RGB" else image.convert("RGB")


def _in_8_bits(image: Any) -> Any:
    """A greyscale image of 16 bits: Pillow itself would make all values above 255 white."""
    values = _LEVELS
    if isinstance(level := image.info.pop("transparency", None), int):  # all pixels of this level
        values = [*_LEVELS[:level], _WHITE, *_LEVELS[level + 1 :]]
    return image.convert("I").point(values, "L")


def _import_decoders() -> None:
    """A worker cannot open files, so all of Pillow's modules that it needs are loaded before."""
    from PIL import Image, ImageOps, MpoImagePlugin  # noqa: F401

    Image.MAX_IMAGE_PIXELS = None  # `_check_size` has the limit
    for format in _FORMATS:
        file = io.BytesIO()
        Image.new("RGB", (2, 2)).save(file, format)
        image = Image.open(file)
        image.thumbnail((1, 1))
        ImageOps.exif_transpose(image, in_place=True)
        _in_rgb(image)
