"""How long a vLLM engine keeps an adapter loaded, and which files it reads."""

import asyncio
import gc
import importlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openai_frontend.engines.engine import EngineError
from openai_frontend.engines.vllm.engine import _WarmUpSink
from openai_frontend.engines.vllm.lora import LoRALoader
from openai_frontend.generation import Adapter
from tests.fast.lora.files import write_peft

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module", autouse=True)
def vllm() -> None:
    """Import vLLM before a test waits for anything: the import takes seconds."""
    importlib.import_module("vllm.lora.request")
    importlib.import_module("vllm.v1.engine.exceptions")


class Engine:
    """Loads and removes adapters as AsyncLLM does, and records both."""

    def __init__(self) -> None:
        self.vllm_config = SimpleNamespace(lora_config=SimpleNamespace())
        self.added: list[str] = []
        self.removed: list[int] = []
        self.refusal: Exception | None = None

    async def add_lora(self, request: Any) -> bool:
        await asyncio.sleep(0)
        if self.refusal is not None:
            raise self.refusal
        assert (Path(request.lora_path) / "adapter_model.safetensors").is_file()
        self.added.append(request.lora_path)
        return True

    async def remove_lora(self, lora_id: int) -> bool:
        self.removed.append(lora_id)
        return True


class Sink(_WarmUpSink):
    """Only the references to it matter here."""


def files_of(folder: str) -> list[str]:
    """The files below a folder, which may be removed meanwhile."""
    return sorted(name for _, folders, files in os.walk(folder) for name in (*folders, *files))


@pytest.fixture
def adapter(tmp_path: Path) -> Adapter:
    return Adapter(name="pirate", id=5, path=write_peft(tmp_path / "pirate"))


async def loaded(adapters: LoRALoader, adapter: Adapter, sink: Any) -> Any:
    taken = adapters.acquire(adapter, sink)
    return await taken if isinstance(taken, asyncio.Task) else taken


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110  there is no event for files and tasks
            await asyncio.sleep(0.001)


async def test_concurrent_requests_load_an_adapter_once(adapter: Adapter) -> None:
    """Later requests do not wait. vLLM gets a name that no other content has."""
    engine = Engine()
    adapters, sink = LoRALoader(engine), Sink()
    requests = await asyncio.gather(*(loaded(adapters, adapter, sink) for _ in range(3)))
    later = adapters.acquire(adapter, sink)
    adapters.close()

    assert len(engine.added) == 1
    assert requests == [later] * 3
    assert (later.lora_name, later.lora_int_id) == ("pirate-5", 5)


async def test_engine_reads_a_copy(adapter: Adapter) -> None:
    """The folder may be removed; the copies are deleted with the engine."""
    assert adapter.path is not None
    adapters, sink = LoRALoader(Engine()), Sink()
    request = await loaded(adapters, adapter, sink)
    shutil.rmtree(adapter.path)
    files = files_of(request.lora_path)
    adapters.close()

    assert files == ["adapter_config.json", "adapter_model.safetensors"]
    assert files_of(request.lora_path) == []


async def test_unloaded_adapter_stays_while_requests_need_it(adapter: Adapter) -> None:
    """It is removed with the last sink, and so is its copy."""
    engine = Engine()
    adapters, first, second = LoRALoader(engine), Sink(), Sink()
    adapters.keep([adapter])
    copy = (await loaded(adapters, adapter, first)).lora_path
    adapters.acquire(adapter, second)
    adapters.keep([])
    del first
    gc.collect()
    await asyncio.sleep(0.01)
    still = (len(files_of(copy)), list(engine.removed))
    del second
    gc.collect()
    await until(lambda: not files_of(copy))
    adapters.close()

    assert still == (2, [])
    assert engine.removed == [5]


async def test_idle_adapter_stays_loaded(adapter: Adapter) -> None:
    """It is removed only when it is unloaded, because it may be requested again."""
    engine = Engine()
    adapters, sink = LoRALoader(engine), Sink()
    adapters.keep([adapter])
    copy = (await loaded(adapters, adapter, sink)).lora_path
    del sink
    gc.collect()
    await asyncio.sleep(0.01)
    kept = (len(files_of(copy)), list(engine.removed))
    adapters.keep([])
    await until(lambda: engine.removed == [5])
    await until(lambda: not files_of(copy))
    adapters.close()

    assert kept == (2, [])


async def test_failed_load_is_retried(adapter: Adapter) -> None:
    """Every waiting request gets the reason, without a path, and no files remain."""
    engine = Engine()
    engine.refusal = Exception("Call to add_lora method failed: Loading it, no odd_proj was known")
    adapters, sink = LoRALoader(engine), Sink()
    waiting = [loaded(adapters, adapter, sink) for _ in range(2)]
    told = await asyncio.gather(*waiting, return_exceptions=True)
    left = files_of(adapters._copies.name)
    engine.refusal = None
    request = await loaded(adapters, adapter, sink)
    adapters.close()

    message = "Loading the LoRA adapter 'pirate' failed: Loading it, no odd_proj was known"
    assert [(type(each), str(each)) for each in told] == [(EngineError, message)] * 2
    assert left == []
    assert request.lora_int_id == 5


async def test_unreadable_files(adapter: Adapter) -> None:
    """The error has the system's reason, without the path."""
    assert adapter.path is not None
    (adapter.path / "adapter_model.safetensors").unlink()
    adapters, sink = LoRALoader(Engine()), Sink()
    with pytest.raises(EngineError, match="reading its files failed: No such file") as refused:
        await loaded(adapters, adapter, sink)
    adapters.close()

    assert str(adapter.path) not in str(refused.value)


async def test_model_without_lora_names_the_setting(adapter: Adapter) -> None:
    """The message names the field and the engine argument."""
    engine = Engine()
    engine.vllm_config.lora_config = None
    adapters = LoRALoader(engine)
    with pytest.raises(ValueError, match=r"^lora_name: .*enable_lora in its model.json"):
        adapters.acquire(adapter, Sink())
    adapters.close()
