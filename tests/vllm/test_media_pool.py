"""Media is decoded and preprocessed in processes with limits; no engine runs."""

import asyncio
import base64
import json
import re
import struct
import time
import zlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import psutil
import pytest
from PIL import Image

from openai_frontend.engines.engine import ModelSpec
from openai_frontend.engines.media import base64_digest
from openai_frontend.engines.vllm import arguments
from openai_frontend.engines.vllm.media.images import MediaCache, new_pool
from openai_frontend.engines.vllm.media.worker import ImageRequest
from openai_frontend.media.fork_server import Reply
from openai_frontend.media.pool import WorkerPool
from openai_frontend.media.stages import LOG
from tests.vllm.pictures import FOLDER, MODEL, encoded

pytestmark = pytest.mark.engine

MEMORY_MIB = 96  # less than the pixels of the largest image in RGBA
RED = Image.new("RGB", (80, 60), (255, 0, 0))
NOISE = Image.effect_noise((80, 60), 90).convert("RGB")


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """One worker at a time, with the demo vision model's processor."""
    given = json.loads((FOLDER / "1" / "model.json").read_text())
    model = ModelSpec(name=MODEL, version=1, folder=FOLDER, parameters={}, arguments=given)
    arguments.set_environment()
    config = arguments.engine_arguments(model).create_engine_config().model_config
    started = new_pool("image", config, processes=1, memory_mib=MEMORY_MIB)
    started.start()
    yield started
    started.close()


def process(pool: WorkerPool, text: str, **changes: Any) -> Reply:
    """The result for an image whose header was read as `changes` say."""
    fields = {"width": 80, "height": 60, "format": "png", "digest": base64_digest(text), **changes}
    request = ImageRequest(**{"key": "k", "cache_salt": None, "low_detail": False, **fields})
    outcome, frames = pool.submit(request, [text.encode()]).result(timeout=300)
    del outcome["stages"]  # their times differ
    return outcome, frames


async def test_stages_are_measured_and_reported_to_traces(pool, monkeypatch):
    """Once for an image that two requests need, and not for one that is known."""
    monkeypatch.setattr(LOG, "enabled", True)
    cache, text = MediaCache(pool, "image", max_bytes=1 << 24), encoded(NOISE)
    asked = ImageRequest("n", base64_digest(text), None, 80, 60, "png", low_detail=False)
    frames = [text.encode()]
    await asyncio.gather(*(cache.processed(asked, frames, each) for each in ("a", "b")))
    await cache.processed(asked, frames, "c")

    stages = LOG.take("a")
    assert sorted(each.name for each in stages) == [
        "image decode",
        "image preprocess",
        "image queue",
    ]
    times = [time for each in sorted(stages, key=lambda each: each.begin_ns) for time in each[1:]]
    assert times == sorted(times)
    assert (LOG.take("b"), LOG.take("c"), LOG.take("a")) == (stages, (), ())
    counts = {
        labels["stage"]: value
        for name, labels, value in cache.samples()
        if name == "openai_frontend_media_stage_seconds_count"
    }
    assert counts == {"queue": 1, "decode": 1, "preprocess": 1}


def worker(pool: WorkerPool) -> psutil.Process:
    """The idle worker's process."""
    process(pool, encoded(RED))
    return psutil.Process(pool._idle[-1].process_id)


def until_dead(process: psutil.Process) -> None:
    """Whether reaped or not."""
    deadline = time.monotonic() + 60
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"process {process.pid} is alive"
        time.sleep(0.01)


def png(width: int, height: int, *, rows: int, alpha: bool = False) -> str:
    """A PNG with a true header and the first `rows` of its rows, all black or transparent."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    colours, channels = (6, 4) if alpha else (2, 3)
    header = struct.pack(">IIBBBBB", width, height, 8, colours, 0, 0, 0)
    pixels = zlib.compress(bytes((1 + channels * width) * rows))
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", pixels), chunk(b"IEND", b""))
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(parts)).decode()


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "WEBP"])
def test_image_becomes_tokens_and_tensors(pool, format):
    """16 of the 19 tokens that replace the placeholder stand for the image."""
    outcome, frames = process(pool, encoded(RED, format), format=format.lower())

    assert outcome["embeds"] == 16
    assert outcome["mask"] == [False, False, *[True] * 16, False]
    assert sum(map(len, frames)) > 3 * 64 * 64 * 4  # its pixels as float32


def test_transparent_parts_are_white(pool):
    """As vLLM does; and the orientation in EXIF is applied."""
    half = Image.new("RGBA", (80, 60), (255, 0, 0, 0))
    white = Image.new("RGB", (80, 60), (255, 255, 255))
    turned = Image.new("RGB", (60, 80))
    turned.paste((255, 255, 255), (0, 0, 60, 40))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    upright = turned.transpose(Image.Transpose.ROTATE_270)

    assert process(pool, encoded(half)) == process(pool, encoded(white))
    turned_back = process(pool, encoded(turned, exif=exif), width=60, height=80)
    assert turned_back == process(pool, encoded(upright))


def test_low_detail_is_a_smaller_image(pool):
    """At most 512 pixels at the longest edge, before the model's own processor."""
    text = encoded(Image.effect_noise((1024, 512), 90).convert("RGB"))

    low, full = (
        process(pool, text, low_detail=low, width=1024, height=512) for low in (True, False)
    )

    assert low != full


@pytest.mark.parametrize("mode", ["P", "1"])
def test_low_detail_of_few_colours_is_filtered(pool, mode):
    """As of the same image in RGB. Pillow itself would only drop pixels."""
    drawn = Image.effect_noise((1024, 512), 90).convert(mode)
    few, full = (encoded(each) for each in (drawn, drawn.convert("RGB")))
    of_few, of_full = (
        process(pool, text, low_detail=True, width=1024, height=512) for text in (few, full)
    )

    assert few != full
    assert of_few == of_full


@pytest.mark.parametrize("low_detail", [False, True])
def test_greyscale_of_16_bits_keeps_its_levels(pool, low_detail):
    """Also if it is large, and has a transparent level, which is white."""
    levels = Image.linear_gradient("L").resize((2304, 288))
    sent = levels.convert("I").point(lambda level: level * 257).convert("I;16")
    hidden = levels.point(lambda level: 255 if level == 9 else level)
    asked = {"low_detail": low_detail, "width": 2304, "height": 288}

    for text, expected in (
        (encoded(sent), levels),
        (encoded(sent, transparency=9 * 257), hidden),
    ):
        same = encoded(expected.convert("RGB"))
        assert process(pool, text, **asked) == process(pool, same, **asked)


REFUSED = {
    "not base64": ("####", {}, "not valid base64"),
    "not an image": ("AAAA", {}, "cannot be decoded as PNG"),
    "not an image, unknown format": (
        "AAAA", {"format": "", "width": 0, "height": 0}, "decoded as PNG, JPEG, GIF or WEBP",
    ),
    "truncated": (encoded(NOISE)[:4000], {}, "cannot be decoded as PNG"),
    "wrong format": (encoded(RED, "JPEG"), {}, "cannot be decoded as PNG"),
    "format that is not allowed": (encoded(RED, "BMP"), {"format": ""}, "PNG, JPEG, GIF or WEBP"),
    "size": (encoded(RED), {"width": 90}, "80 x 60 pixels, but media_info says 90 x 60"),
    "too large": (
        partial(png, 50_000, 50_000, rows=1), {"width": 0, "height": 0},
        "the limit is 25,000,000 in total",
    ),
    "memory": (
        partial(png, 5_000, 5_000, rows=5_000, alpha=True), {"width": 5_000, "height": 5_000},
        f"more than {MEMORY_MIB} MiB",
    ),
    "another image's digest": (
        encoded(RED), {"digest": base64_digest("AAAA")}, "digest in media_info is that of another",
    ),
    "another salt's digest": (encoded(RED), {"cache_salt": "tenant"}, "that of another image"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "changes", "message"), REFUSED.values(), ids=REFUSED)
def test_unusable_image_is_refused(pool, text, changes, message):
    """In our own words: no addresses, paths or text of Pillow. The worker serves on."""
    before = worker(pool).pid

    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        process(pool, text() if callable(text) else text, **changes)

    assert not re.search(r"0x[0-9a-f]+|/|PIL|torch|BytesIO", str(raised.value))
    assert worker(pool).pid == before


def test_dead_idle_worker_fails_no_image(pool):
    """It is replaced, and so is the process that it was forked from."""
    first = worker(pool)
    first.kill()
    until_dead(first)
    second = worker(pool)
    parent = second.parent()
    assert parent is not None
    parent.kill()
    until_dead(second)

    third = worker(pool)

    assert len({first.pid, second.pid, third.pid}) == 3
    assert third.parent() != parent


def test_worker_opens_neither_files_nor_sockets(pool):
    """Its limits are in the kernel, so they hold for a decoder that was taken over, too."""
    found = worker(pool)

    limits = {name: found.rlimit(name) for name in (psutil.RLIMIT_NOFILE, psutil.RLIMIT_FSIZE)}

    assert limits == {psutil.RLIMIT_NOFILE: (0, 0), psutil.RLIMIT_FSIZE: (0, 0)}
    assert found.nice() == psutil.Process().nice() + 5  # text streams go first
    assert not found.net_connections()


def test_close_ends_all_processes(pool):
    """Last in this module. Workers die with the process that forked them."""
    last = worker(pool)
    parent = last.parent()
    assert parent is not None

    pool.close()

    _, alive = psutil.wait_procs([last, parent], timeout=60)
    assert not alive
