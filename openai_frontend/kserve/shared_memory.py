"""Regions of memory that clients share with this server, and the tensors of requests in them."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from openai_frontend.errors import (
    InvalidRequest,
    NotSupported,
    RegionExists,
    RegionNotFound,
)
from openai_frontend.kserve.binary_tensors import check_elements
from openai_frontend.kserve.datatypes import (
    BYTES,
    TensorInput,
    check_size,
    datatype_named,
    reject,
)

MAX_REGIONS = 256
MAX_TOTAL_BYTES = 64 * 2**30
_STEP_BYTES = 2**20  # copied in one step: 0.3 ms
_FOLDER = "/dev/shm"  # noqa: S108  where shm_open has its objects
_MAX_NAME = 255  # characters
_RESERVED = "triton_python_backend_shm_region_"  # in which Triton talks to Python models
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true'."
NO_CUDA = "CUDA shared memory is not supported. Use system shared memory, or send tensors as bytes."

_PARAMETERS = ("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size")


class MappedMemory(Protocol):
    """A mapped part of a file; a writable buffer, and mapped as long as a view of it exists."""

    @property
    def intact(self) -> bool:
        """Whether the file still holds all of it."""


MapRegion = Callable[[int, int, int], MappedMemory]
"""Maps a part of an open file: descriptor, offset, size. Raises ValueError if it is too short."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A tensor's place in a region."""

    region: str
    offset: int
    byte_size: int

    @property
    def parameters(self) -> dict[str, str | int]:
        """The parameters of the tensor."""
        found: dict[str, str | int] = {_PARAMETERS[0]: self.region, _PARAMETERS[2]: self.byte_size}
        return {**found, _PARAMETERS[1]: self.offset} if self.offset else found


@dataclass(frozen=True, slots=True)
class SharedInput:
    """An input whose bytes are in a region."""

    datatype: str
    shape: tuple[int, ...]
    reference: Reference

    @property
    def copied_bytes(self) -> int:
        """Bytes that `attach` copies."""
        return self.reference.byte_size if self.datatype == BYTES.name else 0


def read_reference(tensor: str, parameters: Mapping[str, Any]) -> Reference | None:
    """The place of a tensor, from its parameters; None if they name no region.

    Raises InvalidRequest with the tensor's name.
    """
    region, offset, byte_size = (parameters.get(name) for name in _PARAMETERS)
    if region is None:
        for name in _PARAMETERS[1:]:
            if parameters.get(name) is not None:
                reject(tensor, f"`{name}` needs `shared_memory_region`")
        return None
    if not isinstance(region, str) or not 0 < len(region) <= _MAX_NAME:
        reject(tensor, f"`shared_memory_region` must be a string of 1 to {_MAX_NAME} characters")
    if byte_size is None:
        reject(tensor, "`shared_memory_region` needs `shared_memory_byte_size`")
    return Reference(
        region,
        _number(tensor, _PARAMETERS[1], 0 if offset is None else offset),
        _number(tensor, _PARAMETERS[2], byte_size),
    )


def _number(tensor: str, name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        reject(tensor, f"`{name}` must be an integer from 0 to {2**63 - 1}")
    return value


def is_shared_parameter(name: str) -> bool:
    """Whether it is one of a tensor's parameters for a region."""
    return name in _PARAMETERS


@dataclass(frozen=True, slots=True)
class Region:
    """A registered region."""

    name: str
    key: str
    offset: int
    byte_size: int
    owner: str  # the caller that registered it
    memory: MappedMemory

    def view(self, place: Reference) -> memoryview:
        """The memory of a tensor, which stays mapped as long as the view exists."""
        memory: Any = self.memory
        return memoryview(memory)[place.offset : place.offset + place.byte_size]

    def check(self, tensor: str) -> None:
        """Raises InvalidRequest if the file has become shorter than the region."""
        if not self.memory.intact:
            reject(tensor, f"the shared memory object of region '{self.name}' was truncated")

    def status(self) -> dict[str, Any]:
        """The entry of Triton's list of regions."""
        return {
            "name": self.name,
            "key": self.key,
            "offset": self.offset,
            "byte_size": self.byte_size,
        }


@dataclass(frozen=True, slots=True)
class Attachment:
    """The memory of one request."""

    inputs: Mapping[str, TensorInput]
    outputs: Mapping[str, memoryview]
    regions: Sequence[tuple[str, Region]]  # each with the tensor that is in it

    def check(self) -> None:
        """Call it before the response is used. Raises InvalidRequest if memory was lost."""
        for tensor, region in self.regions:
            region.check(tensor)


class SharedMemory:
    """The registered regions. Only the caller that registered a region can use its memory."""

    def __init__(self, map_region: MapRegion, *, enabled: bool) -> None:
        self.enabled = enabled
        self._map_region = map_region
        self._regions: dict[str, Region] = {}

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """One region, or all of them. Raises RegionNotFound, or NotSupported if it is disabled."""
        self.check_enabled()
        if not name:
            return [region.status() for region in self._regions.values()]
        if name not in self._regions:
            raise RegionNotFound(
                f"Unable to find system shared memory region: '{name[:_MAX_NAME]}'"
            )
        return [self._regions[name].status()]

    def register(self, name: str, key: str, offset: int, byte_size: int, owner: str) -> None:
        """Map a part of the shared memory object `key`.

        Raises InvalidRequest, RegionExists, or NotSupported if it is disabled.
        """
        self.check_enabled()
        if not 0 < len(name) <= _MAX_NAME:
            raise _refusal("name", f"must have 1 to {_MAX_NAME} characters")
        if name in self._regions:
            raise RegionExists(f"shared memory region '{name}' already in manager", param="name")
        if offset < 0 or not 0 < byte_size < 2**63 - offset:
            raise _refusal("byte_size", "must be above 0, and offset not below 0")
        if len(self._regions) >= MAX_REGIONS:
            raise _refusal("name", f"at most {MAX_REGIONS} regions can be registered")
        used = sum(region.byte_size for region in self._regions.values())
        if used + byte_size > MAX_TOTAL_BYTES:
            raise _refusal("byte_size", f"at most {MAX_TOTAL_BYTES} bytes can be registered in all")
        memory = self._map(name, key, offset, byte_size)
        self._regions[name] = Region(name, key, offset, byte_size, owner, memory)

    def unregister(self, name: str = "") -> None:
        """Forget a region, or all; unknown ones are ignored. Requests that use it still can."""
        self.check_enabled()
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def attach(
        self, inputs: Mapping[str, SharedInput], outputs: Mapping[str, Reference], caller: str
    ) -> Attachment:
        """The memory of the tensors of a request. Raises InvalidRequest with a tensor's name."""
        places = {name: shared.reference for name, shared in inputs.items()} | dict(outputs)
        regions = {name: self._region(name, place, caller) for name, place in places.items()}
        return Attachment(
            {name: _input(name, shared, regions[name]) for name, shared in inputs.items()},
            {name: regions[name].view(place) for name, place in outputs.items()},
            list(regions.items()),
        )

    def _region(self, tensor: str, place: Reference, caller: str) -> Region:
        if not self.enabled:
            reject(tensor, f"`shared_memory_region`: {DISABLED}")
        region = self._regions.get(place.region)
        if region is None or region.owner != caller:
            reject(tensor, f"Unable to find shared memory region: '{place.region}'")
        if place.offset >= region.byte_size:
            reject(tensor, f"Invalid offset for shared memory region: '{place.region}'")
        if place.byte_size > region.byte_size - place.offset:
            message = f"Invalid offset + byte size for shared memory region: '{place.region}'"
            reject(tensor, message)
        region.check(tensor)
        return region

    def check_enabled(self) -> None:
        """Raises NotSupported if the server does not allow shared memory."""
        if not self.enabled:
            raise NotSupported(DISABLED)

    def _map(self, name: str, key: str, offset: int, byte_size: int) -> MappedMemory:
        try:
            fd = os.open(_path(key), _FLAGS)
        except OSError:
            raise _refusal("key", f"Unable to open shared memory region: '{key}'") from None
        try:
            return self._map_region(fd, offset, byte_size)
        except (ValueError, RuntimeError) as error:
            message = f"failed to register shared memory region '{name}': {error}"
            raise InvalidRequest(message, param="byte_size") from None
        finally:
            os.close(fd)


def _input(tensor: str, shared: SharedInput, region: Region) -> TensorInput:
    """A view of the region, but a copy for BYTES: another process could change the lengths of
    elements after the check.
    """
    view = region.view(shared.reference)
    data: bytes | memoryview = view
    datatype = datatype_named(tensor, shared.datatype)
    check_size(tensor, datatype, shared.shape, len(data))
    if datatype is BYTES:
        data = _copied(view)
        check_elements(tensor, datatype, shared.shape, memoryview(data))
    return datatype.name, shared.shape, data


def _copied(view: memoryview) -> bytes:
    """In steps, as callers run this beside an event loop, which would stand still meanwhile."""
    steps = range(0, len(view), _STEP_BYTES)
    return b"".join([bytes(view[start : start + _STEP_BYTES]) for start in steps])


def _path(key: str) -> str:
    """The file of a name of shm_open. Raises InvalidRequest."""
    name = key.removeprefix("/")
    if not 0 < len(name.encode(errors="replace")) <= _MAX_NAME or "/" in name or "\x00" in name:
        raise _refusal("key", "must be a name of shared memory: `/` and up to 255 other characters")
    if name in (".", "..") or name.startswith(_RESERVED):
        raise _refusal("key", f"'{key}' is reserved")
    return f"{_FOLDER}/{name}"


def _refusal(field: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {reason}", param=field)
