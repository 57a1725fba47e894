"""The calls by which a vLLM engine sleeps and wakes; `make gpu-check` runs them on a GPU."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from openai_frontend.engines.engine import EngineError
from openai_frontend.engines.vllm import sleep
from openai_frontend.engines.vllm.sleep import EngineSleep


class Client:
    """Records the calls of AsyncLLM's methods."""

    def __init__(self, *, wakes: bool | None = True, lora: object = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.vllm_config = SimpleNamespace(lora_config=lora)
        self._wakes = wakes

    async def sleep(self, level: int) -> None:
        self.calls.append(("sleep", level))

    async def wake_up(self, tags: list[str] | None = None) -> bool | None:
        self.calls.append(("wake_up", tags))
        return self._wakes

    async def collective_rpc(self, method: str) -> None:
        self.calls.append(("collective_rpc", method))


def used_bytes(*values: int) -> Iterator[int]:
    return iter(values)


async def test_level_1_keeps_the_weights():
    client, used = Client(), used_bytes(100, 30)
    engine = EngineSleep(client, used_bytes=lambda: next(used))

    freed = await engine.sleep(1)
    asleep = engine.is_sleeping
    await engine.wake()

    assert (freed, asleep, engine.is_sleeping) == (70, True, False)
    assert client.calls == [("sleep", 1), ("wake_up", None)]


async def test_level_2_reads_the_weights_again():
    """Before there is a cache, whose memory they may need while they are read."""
    client, used = Client(), used_bytes(100, 200)  # another process took memory meanwhile
    engine = EngineSleep(client, used_bytes=lambda: next(used))

    freed = await engine.sleep(2)
    await engine.wake()

    assert freed == 0
    assert client.calls == [
        ("sleep", 2),
        ("wake_up", ["weights"]),
        ("collective_rpc", "reload_weights"),
        ("wake_up", ["kv_cache"]),
    ]


@pytest.mark.parametrize("wakes", [True, None])
async def test_older_versions_do_not_say_whether_they_woke(wakes):
    engine = EngineSleep(Client(wakes=wakes), used_bytes=lambda: 0)
    await engine.sleep(1)
    await engine.wake()

    assert not engine.is_sleeping


async def test_partial_wake_is_a_failure():
    engine = EngineSleep(Client(wakes=False), used_bytes=lambda: 0)
    await engine.sleep(1)

    with pytest.raises(EngineError, match="partly asleep"):
        await engine.wake()
    assert engine.is_sleeping


async def test_level_2_with_adapters_is_refused():
    client = Client(lora=object())
    engine = EngineSleep(client, used_bytes=lambda: 0)

    with pytest.raises(EngineError, match="LoRA"):
        await engine.sleep(2)
    assert (client.calls, engine.is_sleeping) == ([], False)


def test_engine_without_sleep_mode_names_the_obstacle():
    said = sleep.obstacle(SimpleNamespace(enable_sleep_mode=False))

    assert said == "its model.json does not set enable_sleep_mode, which needs CUDA"
    assert sleep.obstacle(SimpleNamespace(enable_sleep_mode=True)) is None
