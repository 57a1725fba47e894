"""Two chat models, an adapter, an embedding model and an ensemble serve while models are reloaded
and unloaded.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import httpx
import psutil
import pytest

from tests import mock_models
from tests.api.models.conftest import EXPLICIT, LiveGateway
from tests.fast.lora.files import write_peft

CHANGES = 200
RELOADED = ("other", "whole", "embedder", "part")
AWAY = (("chat", "unload"), ("chat", "load"))

Ask = Callable[[LiveGateway], Coroutine[Any, Any, httpx.Response]]

ASKS: dict[str, Ask] = {
    "chat": lambda gateway: gateway.chat("chat", max_tokens=6),
    "other": lambda gateway: gateway.chat("other", max_tokens=6, stream=True),
    "other:style": lambda gateway: gateway.chat("other:style", max_tokens=6),
    "whole": lambda gateway: gateway.complete("whole"),
    "embedder": lambda gateway: gateway.client.post(
        "/v1/embeddings", json={"model": "embedder", "input": "hi"}
    ),
}


def write(repository, *, generation: int = 0) -> None:
    """The same models; the core loads one again where its files have changed."""
    context = 4096 + generation
    talks: dict[str, Any] = {"answer_tokens": 6, "tokens": ["x "], "max_model_len": context}
    mock_models.write_with_tokenizer(repository, "chat", **talks)
    mock_models.write_with_tokenizer(repository, "other", max_lora_rank=16, **talks)
    mock_models.write_with_tokenizer(repository, "embedder", tasks=["embed"], max_model_len=context)
    mock_models.write_with_tokenizer(repository, "part", **talks)
    mock_models.write_ensemble(repository, "whole")
    if generation == 0:
        options(repository, "whole", f"tokenizer: {repository}/part/1/tokenizer")
        options(repository, "other", "adapter_folder: adapters")
        write_peft(repository / "other" / "adapters" / "style")


def options(repository, name: str, text: str) -> None:
    (repository / name / "openai_frontend.yaml").write_text(text)


EXPECTED = {"chat": "x " * 6, "other": "x " * 6, "other:style": " style" * 6, "whole": "x " * 6}


def kind(name: str, response: httpx.Response) -> str:
    """`whole`, or the refusal; any other answer is a request that was lost."""
    if response.status_code != 200:
        error = response.json()["error"]
        return f"{response.status_code} {error['code']} {error['param']}"
    if name == "embedder":
        return "whole" if len(response.json()["data"]) == 1 else response.text
    said = streamed(response.text) if name == "other" else text_of(response.json()["choices"][0])
    return "whole" if said.strip() == EXPECTED[name].strip() else response.text


def streamed(body: str) -> str:
    """The text of a stream that came to its end."""
    *events, last = [event.removeprefix("data: ") for event in body.split("\n\n") if event]
    if last != "[DONE]":
        return body
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events]
    return "".join(delta.get("content") or "" for delta in deltas)


def text_of(choice: dict[str, Any]) -> str:
    text: str = choice["text"] if "text" in choice else choice["message"]["content"]
    return text


@asynccontextmanager
async def load(gateway: LiveGateway) -> AsyncIterator[dict[str, Counter[str]]]:
    """Two clients for each model, one request after the other."""
    seen: dict[str, Counter[str]] = {name: Counter() for name in ASKS}
    over = asyncio.Event()

    async def client(name: str) -> None:
        while not over.is_set():
            seen[name][kind(name, await ASKS[name](gateway))] += 1
            await asyncio.sleep(0.01)  # the changes want a share of the machine

    clients = [asyncio.create_task(client(name)) for name in ASKS for _ in range(2)]
    try:
        yield seen
    finally:
        over.set()
        await asyncio.gather(*clients)


@pytest.mark.slow
async def test_changes_lose_no_request(repository, live_gateway):
    """A reloaded model keeps serving until its successor does; requests to an unloaded one complete
    or are rejected.
    """
    write(repository)
    async with live_gateway(**EXPLICIT) as gateway:
        resident = []
        async with load(gateway) as seen:
            for cycle in range(CHANGES // 2):
                write(repository, generation=cycle + 1)
                again = RELOADED[cycle % len(RELOADED)]
                for what in ((again, "load"), *(AWAY if cycle % 2 else ())):
                    changed = await gateway.change(*what)
                    assert changed.status_code == 200, changed.text
                resident.append(psutil.Process().memory_info().rss)

    assert set(seen["chat"]) == {"whole", "503 model_unavailable None"}
    assert {name for name in ASKS if set(seen[name]) != {"whole"}} == {"chat"}, seen
    # From the middle on, as Triton's tests do. The least: two tokenizers of a model may be alive.
    quarters = [min(resident[begin : begin + 25]) for begin in range(0, CHANGES // 2, 25)]
    assert quarters[-1] - quarters[1] < 16 * 2**20, quarters
