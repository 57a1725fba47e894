"""Regions of shared memory: what can be registered, used and lost. On real files of /dev/shm."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openai_frontend.errors import InvalidRequest, NotSupported, RegionExists, RegionNotFound
from openai_frontend.kserve import shared_memory
from openai_frontend.kserve.shared_memory import (
    Reference,
    SharedInput,
    SharedMemory,
    read_reference,
)
from openai_frontend.triton import MappedFile

FOLDER = Path("/dev/shm")  # noqa: S108  where shm_open has its objects
SIZE = 10_000  # more than two pages, and not whole ones


@pytest.fixture
def key() -> Iterator[str]:
    """A shared memory object of SIZE bytes: 0, 1, ... 249, 0, 1, ..."""
    name = f"/openai_frontend_test_{os.getpid()}"
    (FOLDER / name[1:]).write_bytes(bytes(range(250)) * (SIZE // 250))
    yield name
    (FOLDER / name[1:]).unlink()


@pytest.fixture
def regions() -> SharedMemory:
    return SharedMemory(MappedFile, enabled=True)


def read(regions: SharedMemory, *place: Any, caller: str = "", datatype: str = "UINT8") -> bytes:
    """The bytes of an input at this place."""
    reference = Reference(*place)
    shared = SharedInput(datatype, (reference.byte_size,), reference)
    (tensor,) = regions.attach({"IN": shared}, {}, caller).inputs.values()
    return bytes(tensor[2])


def test_region_at_any_offset(regions, key):
    """A region and a tensor in it may begin at any byte, and reach to the file's end."""
    regions.register("r", key, 4999, SIZE - 4999, "")

    assert read(regions, "r", 0, 3) == bytes([249, 0, 1])
    assert read(regions, "r", SIZE - 4999 - 2, 2) == bytes([248, 249])
    assert regions.status("r") == [
        {"name": "r", "key": key, "offset": 4999, "byte_size": SIZE - 4999}
    ]


def test_outputs_reach_the_file(regions, key):
    """What is written to an output's memory is in the file at the region's offset."""
    regions.register("r", key, 100, 1000, "")
    attachment = regions.attach({}, {"OUT": Reference("r", 20, 4)}, "")

    attachment.outputs["OUT"][:] = b"abcd"

    assert (FOLDER / key[1:]).read_bytes()[120:124] == b"abcd"


@pytest.mark.parametrize(
    "key",
    ["", "/", ".", "/..", "../etc/passwd", "/a/b", "//x", "a\0b", "x" * 256, "/etc/passwd",
     "triton_python_backend_shm_region_1", "/triton_python_backend_shm_region_1",
     "openai_frontend_absent"],
)  # fmt: skip
def test_invalid_keys(regions, key):
    """A key names a file directly in /dev/shm, and none of Triton's own."""
    with pytest.raises(InvalidRequest, match=r"^key: "):
        regions.register("r", key, 0, 1, "")


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_only_regular_files(regions, tmp_path, kind):
    """A link to a file elsewhere, a pipe and a folder are refused without waiting for them."""
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(100))
    path = FOLDER / f"openai_frontend_{kind}_{os.getpid()}"
    if kind == "link":
        path.symlink_to(secret)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    try:
        with pytest.raises(InvalidRequest):
            regions.register("r", path.name, 0, 1, "")
    finally:
        path.rmdir() if kind == "folder" else path.unlink()
    assert regions.status() == []


@pytest.mark.parametrize(
    ("offset", "byte_size"),
    [(0, SIZE + 1), (1, SIZE), (SIZE, 1), (0, 0), (-1, 5), (0, -1), (2**63 - 1, 1), (2**64, 1),
     (2**62, 2**62), (0, 2**63), (1, 2**63 - 1)],
)  # fmt: skip
def test_region_beyond_the_file(regions, key, offset, byte_size):
    """Nothing that overflows or is not in the file can be registered."""
    with pytest.raises(InvalidRequest):
        regions.register("r", key, offset, byte_size, "")


@pytest.mark.parametrize(
    "place", [(10, 0), (0, 11), (5, 6), (9, 2), (2**63 - 1, 1), (1, 2**63 - 1), (2**62, 2**62)]
)
def test_tensor_beyond_the_region(regions, key, place):
    """A tensor stays within its region, although the file is larger."""
    regions.register("r", key, 0, 10, "")

    with pytest.raises(InvalidRequest, match="Invalid offset"):
        read(regions, "r", *place)


def test_names(regions, key):
    """A name is taken until its region is unregistered; then it is unknown."""
    regions.register("r", key, 0, 10, "")
    with pytest.raises(RegionExists, match="shared memory region 'r' already in manager"):
        regions.register("r", key, 0, 10, "")
    with pytest.raises(InvalidRequest, match=r"^name: "):
        regions.register("", key, 0, 10, "")
    regions.unregister("r")
    regions.unregister("r")

    with pytest.raises(RegionNotFound, match="'r'"):
        regions.status("r")
    with pytest.raises(InvalidRequest, match="Unable to find shared memory region: 'r'"):
        read(regions, "r", 0, 1)


def test_region_of_another_caller(regions, key):
    """For every other caller a region is unknown, in the words for one that does not exist."""
    regions.register("r", key, 0, 10, "owner")

    assert read(regions, "r", 0, 1, caller="owner") == b"\0"
    for caller in ("", "other"):
        with pytest.raises(InvalidRequest, match="Unable to find shared memory region: 'r'"):
            read(regions, "r", 0, 1, caller=caller)


def test_limits(regions, key, monkeypatch):
    """Neither more regions nor more bytes in all than the limits."""
    monkeypatch.setattr(shared_memory, "MAX_REGIONS", 2)
    monkeypatch.setattr(shared_memory, "MAX_TOTAL_BYTES", 100)
    regions.register("a", key, 0, 60, "")
    with pytest.raises(InvalidRequest, match="at most 100 bytes"):
        regions.register("b", key, 0, 41, "")
    regions.register("b", key, 0, 40, "")
    with pytest.raises(InvalidRequest, match="at most 2 regions"):
        regions.register("c", key, 0, 1, "")


def test_memory_outlives_the_registration(regions, key):
    """A request that uses a region keeps it mapped when it is unregistered, and the file gone."""
    regions.register("r", key, 0, SIZE, "")
    shared = SharedInput("UINT8", (SIZE,), Reference("r", 0, SIZE))
    attachment = regions.attach({"IN": shared}, {}, "")
    before = mappings(key)

    regions.unregister()

    assert bytes(attachment.inputs["IN"][2][:3]) == bytes([0, 1, 2])
    attachment.check()
    del attachment
    assert (before, mappings(key)) == (1, 0)


def mappings(key: str) -> int:
    """How often this process maps the object."""
    return Path("/proc/self/maps").read_text().count(str(FOLDER / key[1:]))


@pytest.mark.parametrize("length", [0, 5000, SIZE - 1])
def test_shortened_file(regions, key, length):
    """Its lost memory reads as zeros, the process lives, and the request and later ones fail."""
    regions.register("r", key, 0, SIZE, "")
    shared = SharedInput("UINT8", (SIZE,), Reference("r", 0, SIZE))
    attachment = regions.attach({"IN": shared}, {"OUT": Reference("r", 8000, 100)}, "")

    os.truncate(FOLDER / key[1:], length)

    attachment.outputs["OUT"][:] = bytes(100)
    assert bytes(attachment.inputs["IN"][2])[9000:] == bytes(1000) or length == SIZE - 1
    with pytest.raises(InvalidRequest, match="'r' was truncated"):
        attachment.check()
    with pytest.raises(InvalidRequest, match="'r' was truncated"):
        read(regions, "r", 0, 1)


def test_file_that_grew_again(regions, key):
    """A region whose memory was lost stays lost: the mapping is not of the file any more."""
    regions.register("r", key, 0, SIZE, "")
    attachment = regions.attach({}, {"OUT": Reference("r", 0, 100)}, "")
    os.truncate(FOLDER / key[1:], 0)
    attachment.outputs["OUT"][:] = bytes(100)

    os.truncate(FOLDER / key[1:], SIZE)

    with pytest.raises(InvalidRequest, match="truncated"):
        attachment.check()


def test_bytes_elements_are_copied_and_checked(regions, key, monkeypatch):
    """Another process cannot change lengths after the check, and malformed ones are refused."""
    monkeypatch.setattr(shared_memory, "_STEP_BYTES", 4)  # the copy is made in two steps
    path = FOLDER / key[1:]
    path.write_bytes((struct.pack("<I", 3) + b"abc").ljust(SIZE, b"\xff"))
    regions.register("r", key, 0, SIZE, "")
    shared = SharedInput("BYTES", (1,), Reference("r", 0, 7))
    attachment = regions.attach({"IN": shared}, {}, "")
    path.write_bytes(b"\xff" * SIZE)

    assert attachment.inputs["IN"] == ("BYTES", (1,), struct.pack("<I", 3) + b"abc")
    with pytest.raises(InvalidRequest, match="'IN'"):
        regions.attach({"IN": shared}, {}, "")


def test_size_must_fit_the_shape(regions, key):
    regions.register("r", key, 0, SIZE, "")

    with pytest.raises(InvalidRequest, match="needs 400 bytes, got 100"):
        read(regions, "r", 0, 100, datatype="FP32")


def test_disabled(key):
    """Without the option nothing can be registered, listed or used."""
    regions = SharedMemory(MappedFile, enabled=False)

    for call in (regions.status, regions.unregister, lambda: regions.register("r", key, 0, 1, "")):
        with pytest.raises(NotSupported, match="--allow-client-shm"):
            call()
    with pytest.raises(InvalidRequest, match="--allow-client-shm"):
        read(regions, "r", 0, 1)


@pytest.mark.parametrize(
    "parameters",
    [{"shared_memory_offset": 0}, {"shared_memory_byte_size": 1}, {"shared_memory_region": "r"},
     {"shared_memory_region": 7, "shared_memory_byte_size": 1},
     {"shared_memory_region": "", "shared_memory_byte_size": 1},
     {"shared_memory_region": "r" * 256, "shared_memory_byte_size": 1},
     {"shared_memory_region": "r", "shared_memory_byte_size": True},
     {"shared_memory_region": "r", "shared_memory_byte_size": 1.0},
     {"shared_memory_region": "r", "shared_memory_byte_size": -1},
     {"shared_memory_region": "r", "shared_memory_byte_size": 2**63},
     {"shared_memory_region": "r", "shared_memory_byte_size": 1, "shared_memory_offset": "0"}],
)  # fmt: skip
def test_invalid_references(parameters):
    """A region needs a size, and the other parameters a region; the error names the tensor."""
    with pytest.raises(InvalidRequest, match=r"'IN'.*shared_memory"):
        read_reference("IN", parameters)
