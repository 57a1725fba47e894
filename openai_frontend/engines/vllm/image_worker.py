"""The process that decodes and preprocesses images:
`python -m openai_frontend.engines.vllm.image_worker SOCKET MEMORY_MIB`.

It imports vLLM and makes the model's processor once, then forks a worker for each socket that it
gets, in milliseconds. A worker can open neither files nor sockets, and has a memory limit; it may
crash or hang, and is then replaced. Whoever sends it a request has the time limit.

Reads vLLM's pickled ModelConfig from standard input. Messages of SOCKET (one per packet): to the
parent the facts or an error as JSON; from it `fork` with a socket, answered with the process id,
and `kill ID`. Requests and replies of a worker: see `ImageRequest` and `read_message`.
"""

import base64
import binascii
import ctypes
import hashlib
import io
import json
import os
import pickle
import resource
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

LOW_DETAIL_SIDE = 512  # pixels of the longest edge
MAX_PIXELS = 25_000_000  # of an image whose size nobody has checked
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
_MIB = 1 << 20
_RESERVE = 64 * _MIB  # to answer with, once the memory limit is reached
_PR_SET_PDEATHSIG = 1
_LENGTHS = struct.Struct("<II")  # of a message's JSON, and number of frames
_LENGTH = struct.Struct("<Q")  # of a frame


class ImageRefused(ValueError):
    """The image cannot be used; the message is for the client."""


class ImageRequest(NamedTuple):
    """What a worker gets besides the base64 text."""

    key: str  # of the caches
    digest: str
    cache_salt: str | None
    width: int  # pixels; 0: unknown
    height: int
    format: str  # "": unknown
    low_detail: bool


def read_message(connection: Any) -> tuple[Any, list[memoryview]]:
    """Receive JSON and frames. `connection` has socket's `recv_into`. Raises EOFError."""
    json_bytes, count = _LENGTHS.unpack(_read(connection, _LENGTHS.size))
    header = json.loads(bytes(_read(connection, json_bytes)))
    sizes = [_LENGTH.unpack(_read(connection, _LENGTH.size))[0] for _ in range(count)]
    return header, [_read(connection, size) for size in sizes]


def _read(connection: Any, size: int) -> memoryview:
    data = memoryview(bytearray(size))
    done = 0
    while done < size:
        if not (received := connection.recv_into(data[done:])):
            raise EOFError("the other side closed the connection")
        done += received
    return data


def write_message(connection: Any, header: Any, frames: Sequence[Any] = ()) -> None:
    """Send JSON and frames (bytes-like)."""
    encoded = json.dumps(header).encode()
    views = [memoryview(each).cast("B") for each in frames]
    sizes = b"".join(_LENGTH.pack(len(view)) for view in views)
    connection.sendall(_LENGTHS.pack(len(encoded), len(views)) + encoded + sizes)
    for view in views:
        connection.sendall(view)


class ImageProcessor:
    """The model's own processor, for one image at a time."""

    def __init__(self, model_config: Any) -> None:
        from vllm.multimodal import MULTIMODAL_REGISTRY
        from vllm.v1.serial_utils import MsgpackEncoder

        self._processor: Any = MULTIMODAL_REGISTRY.create_processor(model_config)
        self._encoder = MsgpackEncoder()
        dummy = self._processor.dummy_inputs
        text = dummy.get_dummy_text({"image": 1})
        self._prompt: list[int] = self._processor.info.ctx.tokenizer.encode(
            text, add_special_tokens=False
        )
        length = model_config.max_model_len
        (largest,) = dummy.get_dummy_mm_data(length, {"image": 1}, {})["image"]
        outcome, _ = self._apply(largest, "largest")
        self.facts = {"target": outcome["target"], "max_tokens": outcome["embeds"]}

    def process(self, request: ImageRequest, text: memoryview) -> tuple[dict[str, Any], list[Any]]:
        """Return what replaces the placeholder, and the model's input as vLLM encodes it.

        Raises ImageRefused.
        """
        image = _decode(request, bytes(text))
        try:
            return self._apply(image, request.key)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  the processors of all models, with any message
            print(f"image processor failed: {type(error).__name__}", file=sys.stderr)  # noqa: T201
            size = f"{image.width} x {image.height}"
            raise ImageRefused(f"the model cannot process an image of {size} pixels") from None

    def _apply(self, image: Any, key: str) -> tuple[dict[str, Any], list[Any]]:
        from vllm.multimodal.processing import ProcessorInputs, TimingContext

        items = self._processor.info.parse_mm_data({"image": [image]})
        inputs = ProcessorInputs(list(self._prompt), items, {"image": [key]})
        found = self._processor.apply(inputs, TimingContext(enabled=False))
        (place,) = found["mm_placeholders"]["image"]
        (item,) = found["mm_kwargs"]["image"]
        ids = found["prompt_token_ids"]
        replaced = len(self._prompt) - (len(ids) - place.length)
        mask = None if place.is_embed is None else place.is_embed.tolist()
        outcome = {
            "target": self._prompt[place.offset : place.offset + replaced],
            "token_ids": ids[place.offset : place.offset + place.length],
            "mask": mask,
            "embeds": place.length if mask is None else sum(mask),
        }
        return outcome, self._encoder.encode(item)


def _decode(request: ImageRequest, text: bytes) -> Any:
    """Return the image in RGB; transparent parts are white. Raises ImageRefused."""
    from PIL import Image, ImageOps

    _check_digest(request, text)
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ImageRefused("not valid base64") from None
    formats = (request.format.upper(),) if request.format else _FORMATS
    try:
        image = Image.open(io.BytesIO(data), formats=formats)
        _check_size(request, *image.size)
        if request.low_detail:
            image.thumbnail((LOW_DETAIL_SIDE, LOW_DETAIL_SIDE), Image.Resampling.LANCZOS)
        ImageOps.exif_transpose(image, in_place=True)  # without a copy if it is upright
        return _in_rgb(image)
    except (ImageRefused, MemoryError):
        raise
    except Exception:  # noqa: BLE001  Pillow's messages may contain addresses
        named = request.format.upper() or "PNG, JPEG, GIF or WEBP"
        raise ImageRefused(f"cannot be decoded as {named}") from None


def _check_digest(request: ImageRequest, text: bytes) -> None:
    digest = hashlib.sha256(text).hexdigest()
    if request.cache_salt is not None:
        digest = hashlib.sha256(f"{request.cache_salt}:{digest}".encode()).hexdigest()
    if digest != request.digest:
        raise ImageRefused("its digest in media_info is that of another image")


def _check_size(request: ImageRequest, width: int, height: int) -> None:
    if not request.width:
        if width * height > MAX_PIXELS:
            raise ImageRefused(f"{width} x {height} pixels; the limit is {MAX_PIXELS:,} in total")
    elif (width, height) != (request.width, request.height):
        declared = f"{request.width} x {request.height}"
        raise ImageRefused(f"{width} x {height} pixels, but media_info says {declared}")


def _in_rgb(image: Any) -> Any:
    from PIL import Image

    image.load()
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, (255, 255, 255))
        white.paste(image, mask=image.getchannel("A"))
        return white
    return image if image.mode == "RGB" else image.convert("RGB")


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


def _serve(connection: socket.socket, processor: ImageProcessor, memory_mib: int) -> NoReturn:
    """Process requests until the connection ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    memory = _limit(memory_mib)
    try:
        while True:
            header, (text,) = read_message(connection)
            try:
                outcome, frames = processor.process(ImageRequest(*header), text)
            except ImageRefused as error:
                outcome, frames = {"refused": str(error)}, []
            except MemoryError:
                resource.setrlimit(resource.RLIMIT_AS, (memory + _RESERVE, memory + _RESERVE))
                outcome = {"refused": f"processing it needs more than {memory_mib} MiB"}
                frames = []
            write_message(connection, outcome, frames)
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory + _RESERVE))
    except (EOFError, OSError):
        os._exit(0)
    except BaseException:  # noqa: BLE001  a fork must not return into its parent's code
        os._exit(1)


def _limit(memory_mib: int) -> int:
    """Return the limit of the address space in bytes."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    memory = pages * resource.getpagesize() + memory_mib * _MIB
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory + _RESERVE))
    limits = {
        resource.RLIMIT_NOFILE: 0,  # open descriptors stay open
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
    }
    for which, limit in limits.items():
        resource.setrlimit(which, (limit, limit))
    return memory


def _run(control: socket.socket, processor: ImageProcessor, memory_mib: int) -> None:
    """Fork and kill workers until the parent closes the socket."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 64, 1)
        if not message:
            return
        verb, _, argument = message.decode().partition(" ")
        if verb == "kill":
            os.kill(int(argument), signal.SIGKILL)  # not reaped yet, so the id is still its own
            os.waitpid(int(argument), 0)
            continue
        with socket.socket(fileno=descriptors[0]) as connection:
            if (worker := os.fork()) == 0:
                control.close()
                _serve(connection, processor, memory_mib)
        control.send(str(worker).encode())


def main() -> None:
    """Make the processor, report what it found, and fork workers."""
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _import_decoders()
        processor = ImageProcessor(pickle.load(sys.stdin.buffer))  # noqa: S301  of our own parent
    except Exception as error:
        control.send(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        raise
    control.send(json.dumps(processor.facts).encode())
    _run(control, processor, int(sys.argv[2]))


if __name__ == "__main__":
    main()
