"""Loads and unloads the LoRA adapters of a vLLM engine.

vLLM keeps `max_cpu_loras` adapters and reads the others from their files again in the middle of a
step; a missing or changed file ends its process. So each adapter is copied once and read from the
copy: changes to its folder affect no request.
"""

import asyncio
import contextlib
import logging
import shutil
import tempfile
import threading
import weakref
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai_frontend.engines.engine import DeltaSink, EngineError
from openai_frontend.engines.vllm import conversion
from openai_frontend.engines.vllm.stats import lora_request_name
from openai_frontend.errors import caught
from openai_frontend.generation import Adapter
from openai_frontend.logs.repeats import log_error
from openai_frontend.triton import error_codes

logger = logging.getLogger(__name__)

FILES = ("adapter_config.json", "adapter_model.safetensors")

_REFUSED = "Call to add_lora method failed: "


@dataclass(slots=True, eq=False)
class _Loaded:
    """An adapter that the engine has or is loading."""

    loading: asyncio.Task[Any]  # returns vLLM's LoRARequest
    sinks: set[weakref.ref[DeltaSink]] = field(default_factory=set)  # of the requests that use it


class LoRALoader:
    """Adapters by id. Call it on the event loop, unless the docstring says otherwise."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._copies = tempfile.TemporaryDirectory(prefix="openai-frontend-adapters-")
        self._loaded: dict[int, _Loaded] = {}
        self._kept: frozenset[int] = frozenset()
        self._tasks: set[asyncio.Task[None]] = set()

    def acquire(self, adapter: Adapter, sink: DeltaSink) -> Any:
        """Return vLLM's request that names the adapter, or the task that creates it.

        The adapter stays loaded until the sink is gone.
        """
        if self._engine.vllm_config.lora_config is None:
            raise ValueError(
                "lora_name: the model does not support LoRA; set enable_lora in its model.json"
            )
        loaded = self._loaded.get(adapter.id)
        if loaded is None:
            loaded = _Loaded(asyncio.get_running_loop().create_task(self._load(adapter)))
            loaded.loading.add_done_callback(_retrieve_exception)
            self._loaded[adapter.id] = loaded
        loaded.sinks.add(weakref.ref(sink, self._when_unused(adapter.id)))
        return loaded.loading.result() if loaded.loading.done() else loaded.loading

    def keep(self, adapters: Iterable[Adapter]) -> None:
        """Set the adapters that later requests may use. Works on any thread while the engine has no
        adapter.
        """
        self._kept = frozenset(adapter.id for adapter in adapters)
        for adapter_id in [*self._loaded]:
            self._drop_unused(adapter_id)

    def close(self) -> None:
        """Remove the copies. Works on any thread, once no request is left."""
        self._engine = None  # its finalizer would fail at interpreter exit
        self._copies.cleanup()

    def _when_unused(self, adapter_id: int) -> Any:
        """Returns the callback for a sink that is gone. The garbage collector calls it on any
        thread.
        """
        loop, owner = asyncio.get_running_loop(), threading.get_ident()

        def gone(sink: weakref.ref[DeltaSink]) -> None:
            if loop.is_closed():
                return
            if threading.get_ident() == owner:
                loop.call_soon(self._forget, adapter_id, sink)
            else:
                loop.call_soon_threadsafe(self._forget, adapter_id, sink)

        return gone

    def _forget(self, adapter_id: int, sink: weakref.ref[DeltaSink]) -> None:
        if (loaded := self._loaded.get(adapter_id)) is not None:
            loaded.sinks.discard(sink)
            self._drop_unused(adapter_id)

    def _drop_unused(self, adapter_id: int) -> None:
        loaded = self._loaded[adapter_id]
        if adapter_id in self._kept or loaded.sinks:
            return
        del self._loaded[adapter_id]
        self._spawn(self._remove(loaded))

    async def _load(self, adapter: Adapter) -> Any:
        """Copy the adapter and load it into the engine. Raises EngineError if the engine refuses
        it.
        """
        from vllm.lora.request import LoRARequest

        copy = Path(tempfile.mkdtemp(prefix=f"{adapter.id}-", dir=self._copies.name))
        failures: list[Exception] = []
        with caught(failures.append):
            await asyncio.to_thread(_copy, adapter, copy)
            request = LoRARequest(lora_request_name(adapter), adapter.id, str(copy))
            await self._engine.add_lora(request)
        if not failures:
            return request
        self._loaded.pop(adapter.id, None)  # the next request retries
        await asyncio.to_thread(shutil.rmtree, copy, ignore_errors=True)
        reason = _reason(failures[0]).replace(str(copy), "it")
        failed = "loading LoRA adapter %s failed: %s"
        log_error(logger, failed, adapter.name, reason, error=failures[0])
        message = f"Loading the LoRA adapter '{adapter.name}' failed: {reason}"
        raise EngineError(message, error_codes.UNAVAILABLE) from failures[0]

    async def _remove(self, loaded: _Loaded) -> None:
        """Runs after the last abort of a request that used the adapter."""
        with (
            contextlib.suppress(EngineError),
            conversion.translate_errors(),
        ):  # it was never loaded
            request = await loaded.loading
            await self._engine.remove_lora(request.lora_int_id)
            await asyncio.to_thread(shutil.rmtree, request.lora_path, ignore_errors=True)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _retrieve_exception(loading: asyncio.Task[Any]) -> None:
    """Waiting requests get the failure. If none is left, asyncio must not log it as never
    retrieved.
    """
    if not loading.cancelled():
        loading.exception()


def _copy(adapter: Adapter, folder: Path) -> None:
    if adapter.path is None:
        raise EngineError("it has no folder")
    for name in FILES:
        shutil.copyfile(adapter.path / name, folder / name)


def _reason(error: Exception) -> str:
    """The cause, without paths of this machine."""
    if isinstance(error, OSError):
        return f"reading its files failed: {error.strerror}"
    return str(error).removeprefix(_REFUSED) or type(error).__name__
