"""A tensor's parameters for shared memory: its bytes are a slice of its region, or refused."""

from typing import Any

import orjson

from openai_frontend.kserve.shared_memory import (
    Reference,
    Region,
    SharedInput,
    SharedMemory,
    read_reference,
)
from scripts.fuzz.outcome import outcome

_SIZE = 64
_BYTES = bytes(range(_SIZE))

WORDS = (
    *('"shared_memory_region":"r"', '"shared_memory_offset":', '"shared_memory_byte_size":'),
    *("0", "1", "63", "64", "-1", "true", "null", "1e3", str(2**62), str(2**63 - 1), str(2**64)),
)
SEEDS = (
    b'{"shared_memory_region":"r","shared_memory_offset":60,"shared_memory_byte_size":4}',
    b'{"shared_memory_region":"r","shared_memory_byte_size":64}',
    b'{"shared_memory_region":"s","shared_memory_offset":0,"shared_memory_byte_size":1}',
)


class _Memory(bytearray):
    intact = True


def _no_file(_fd: int, _offset: int, _size: int) -> Any:
    raise AssertionError("no region is registered here")


def check(data: bytes) -> None:
    try:
        parameters = orjson.loads(data)
    except orjson.JSONDecodeError:
        return
    if not isinstance(parameters, dict):
        return
    regions = SharedMemory(_no_file, enabled=True)
    regions._regions["r"] = Region("r", "/r", 0, _SIZE, "", _Memory(_BYTES))

    def read() -> tuple[Reference | None, bytes]:
        place = read_reference("IN", parameters)
        if place is None:
            return None, b""
        shared = {"IN": SharedInput("UINT8", (place.byte_size,), place)}
        attachment = regions.attach(shared, {"OUT": place}, "")
        attachment.check()
        assert attachment.outputs["OUT"].nbytes == place.byte_size
        return place, bytes(attachment.inputs["IN"][2])

    kind, found = outcome(read)
    if kind == "value" and found[0] is not None:
        place, tensor = found
        assert place.region == "r"
        assert tensor == _BYTES[place.offset : place.offset + place.byte_size]
        assert len(tensor) == place.byte_size
