"""vLLM's sleep: its processes give GPU memory back while the model is not used."""

import asyncio
from collections.abc import Callable
from typing import Any

from openai_frontend.engines.engine import EngineError


def obstacle(model_config: Any, *, transfers: bool = False) -> str | None:
    """Why an engine with vLLM's ModelConfig cannot sleep; None if it can. vLLM itself refuses
    `enable_sleep_mode` without CUDA.
    """
    if transfers:
        return "other servers read its KV cache (kv_transfer_config)"
    if getattr(model_config, "enable_sleep_mode", False):
        return None
    return "its model.json does not set enable_sleep_mode, which needs CUDA"


def gpu_bytes_used() -> int:
    """Used memory of all GPUs, of every process. Blocks for some milliseconds."""
    from vllm.third_party import pynvml

    pynvml.nvmlInit()
    try:
        devices = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return sum(pynvml.nvmlDeviceGetMemoryInfo(each).used for each in devices)
    finally:
        pynvml.nvmlShutdown()


class EngineSleep:
    """Sleep and wakes of one AsyncLLM."""

    def __init__(self, engine: Any, *, used_bytes: Callable[[], int] = gpu_bytes_used) -> None:
        self._engine = engine
        self._used_bytes = used_bytes
        self._level = 0  # 0: awake

    def close(self) -> None:
        """The engine is shut down: a reference would keep its sockets and threads."""
        self._engine = None

    @property
    def is_sleeping(self) -> bool:
        return self._level > 0

    async def sleep(self, level: int) -> int:
        """Return the bytes that the GPUs have free now and had not before.

        Raises EngineError for level 2 with LoRA: only the model's own weights are read again.
        """
        if level > 1 and self._engine.vllm_config.lora_config is not None:
            raise EngineError("sleep_level 2 would lose the weights of LoRA adapters; use 1")
        before = await asyncio.to_thread(self._used_bytes)
        self._level = level
        await self._engine.sleep(level)
        return max(0, before - await asyncio.to_thread(self._used_bytes))

    async def wake(self) -> None:
        """Raises EngineError if vLLM stays partly asleep."""
        if self._level > 1:  # the weights have only their memory again, not their values
            await self._engine.wake_up(["weights"])
            await self._engine.collective_rpc("reload_weights")
            awake = await self._engine.wake_up(["kv_cache"])
        else:
            awake = await self._engine.wake_up()
        if awake is False:  # older versions return None
            raise EngineError("vLLM is still partly asleep")
        self._level = 0
