"""The LoRA adapters that an engine of vLLM's has.

vLLM keeps `max_cpu_loras` of them and reads the others again from their files in the middle of a
step, where a file that is gone or has changed ends its process. So each adapter is copied once, and
read from there: what becomes of its folder touches no request.
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
from openai_frontend.generation import Adapter
from openai_frontend.triton import error_codes

logger = logging.getLogger(__name__)

FILES = ("adapter_config.json", "adapter_model.safetensors")

_REFUSED = "Call to add_lora method failed: "


@dataclass(slots=True, eq=False)
class _Loaded:
    """An adapter that the engine has, or is being given."""

    loading: asyncio.Task[Any]  # makes vLLM's LoRARequest
    sinks: set[weakref.ref[DeltaSink]] = field(default_factory=set)  # of the requests that need it


class LoRALoader:
    """LoRALoader by id. Used on the event loop, but for what its docstring says."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._copies = tempfile.TemporaryDirectory(prefix="openai-frontend-adapters-")
        self._loaded: dict[int, _Loaded] = {}
        self._kept: frozenset[int] = frozenset()
        self._tasks: set[asyncio.Task[None]] = set()

    def taken(self, adapter: Adapter, sink: DeltaSink) -> Any:
        """The request of vLLM's that names the adapter, or the task that makes it; the adapter
        stays until the sink has gone.
        """
        if self._engine.vllm_config.lora_config is None:
            raise ValueError("lora_name: the model takes no adapters (enable_lora in model.json)")
        loaded = self._loaded.get(adapter.id)
        if loaded is None:
            loaded = _Loaded(asyncio.get_running_loop().create_task(self._load(adapter)))
            loaded.loading.add_done_callback(_seen)
            self._loaded[adapter.id] = loaded
        loaded.sinks.add(weakref.ref(sink, self._when_unused(adapter.id)))
        return loaded.loading.result() if loaded.loading.done() else loaded.loading

    def keep(self, adapters: Iterable[Adapter]) -> None:
        """Only these may come again; on any thread as long as the engine has none."""
        self._kept = frozenset(adapter.id for adapter in adapters)
        for adapter_id in [*self._loaded]:
            self._drop_unused(adapter_id)

    def close(self) -> None:
        """Remove the copies; on any thread, once no request is left."""
        self._engine = None  # whose finalizer would fail at the interpreter's exit
        self._copies.cleanup()

    def _when_unused(self, adapter_id: int) -> Any:
        """What a sink that has gone calls, on whichever thread the collector runs."""
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
        """Copy the adapter and give it to the engine. Raises EngineError where it refuses."""
        from vllm.lora.request import LoRARequest

        copy = Path(tempfile.mkdtemp(prefix=f"{adapter.id}-", dir=self._copies.name))
        try:
            await asyncio.to_thread(_copy, adapter, copy)
            # Named for its content: vLLM's prefix cache tells adapters apart by name and path.
            request = LoRARequest(f"{adapter.name}-{adapter.id}", adapter.id, str(copy))
            await self._engine.add_lora(request)
        except Exception as error:
            self._loaded.pop(adapter.id, None)  # the next request tries again
            await asyncio.to_thread(shutil.rmtree, copy, ignore_errors=True)
            reason = _reason(error).replace(str(copy), "it")
            logger.error("adapter %s cannot be loaded: %s", adapter.name, reason)
            message = f"The adapter '{adapter.name}' cannot be loaded: {reason}"
            raise EngineError(message, error_codes.UNAVAILABLE) from error
        return request

    async def _remove(self, loaded: _Loaded) -> None:
        """Behind the last abort of a request that needed it."""
        with (
            contextlib.suppress(EngineError),
            conversion.translate_errors(),
        ):  # it is not there anyway
            request = await loaded.loading
            await self._engine.remove_lora(request.lora_int_id)
            await asyncio.to_thread(shutil.rmtree, request.lora_path, ignore_errors=True)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _seen(loading: asyncio.Task[Any]) -> None:
    """A failure is told to those who wait for it; there may be none left."""
    if not loading.cancelled():
        loading.exception()


def _copy(adapter: Adapter, folder: Path) -> None:
    if adapter.path is None:
        raise EngineError("it has no folder")
    for name in FILES:
        shutil.copyfile(adapter.path / name, folder / name)


def _reason(error: Exception) -> str:
    """Why, without a path of this machine."""
    if isinstance(error, OSError):
        return f"its files cannot be read: {error.strerror}"
    return str(error).removeprefix(_REFUSED) or type(error).__name__
