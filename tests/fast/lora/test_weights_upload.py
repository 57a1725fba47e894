"""When an adapter's weights are sent to TensorRT-LLM."""

import asyncio
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openai_frontend.config.model_options import ModelOptions
from openai_frontend.errors import InferenceFailed, ModelUnavailable
from openai_frontend.generation import Adapter, CompletionDelta, GenerationRequest
from openai_frontend.models.loader import ModelLoader
from openai_frontend.models.lora import files, weights_upload
from openai_frontend.models.lora.weights_upload import UploadLog, WeightsUploader
from tests.fast.contracts.recorded import ENSEMBLE
from tests.fast.lora.files import write_tensorrt_llm


class Backend:
    """Caches one adapter, as TensorRT-LLM may many, and knows it by its id alone from then on."""

    def __init__(self) -> None:
        self.cached: int | None = None
        self.got: list[tuple[int, bool]] = []  # id, whether weights came with it
        self.fails_after: CompletionDelta | None = None
        self.reason = ""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[list[CompletionDelta]]:
        adapter, weights = request.adapter, request.adapter_weights
        assert adapter is not None
        self.got.append((adapter.id, weights is not None))
        await asyncio.sleep(0)
        if weights is not None:
            assert weights.weights.shape == (1, 2, 6)
            assert weights.config.shape == (1, 2, 3)
            self.cached = adapter.id
        if self.fails_after is not None:
            yield [self.fails_after]
            raise InferenceFailed(self.reason)
        if self.cached != adapter.id:
            raise InferenceFailed(
                f"in ensemble 'ensemble', LoRA task {adapter.id} not found in cache. "
                "Please send LoRA weights with request"
            )
        yield [CompletionDelta(f"by {adapter.id}", finish_reason="stop")]


@pytest.fixture
def adapters(tmp_path: Path) -> list[Adapter]:
    return [Adapter(name=str(n), id=n, path=write_tensorrt_llm(tmp_path / str(n))) for n in (1, 2)]


async def ask(told: WeightsUploader, backend: Backend, adapter: Adapter) -> str:
    request = GenerationRequest(request_id="r", prompt="hi", adapter=adapter)
    bursts = [burst async for burst in told.generate(request, backend.generate)]
    return "".join(delta.text for burst in bursts for delta in burst)


async def test_first_request_carries_the_weights(adapters: list[Adapter]) -> None:
    """Later requests send only the id."""
    told, backend = WeightsUploader(UploadLog()), Backend()

    said = [await ask(told, backend, adapters[0]) for _ in range(3)]

    assert said == ["by 1"] * 3
    assert backend.got == [(1, True), (1, False), (1, False)]


async def test_evicted_weights_are_sent_again(adapters: list[Adapter]) -> None:
    """The request that detects the eviction succeeds, and so do later ones."""
    told, backend = WeightsUploader(UploadLog()), Backend()

    said = [await ask(told, backend, adapters[n]) for n in (0, 1, 0, 0)]

    assert said == ["by 1", "by 2", "by 1", "by 1"]
    assert backend.got == [(1, True), (2, True), (1, False), (1, True), (1, False)]


async def test_an_upload_to_another_model_may_evict(adapters: list[Adapter]) -> None:
    """An ensemble and a BLS model may share the engine, and so its cache."""
    log, backend = UploadLog(), Backend()
    ensemble, bls = WeightsUploader(log), WeightsUploader(log)

    said = [
        await ask(told, backend, adapters[n])
        for told, n in ((ensemble, 0), (bls, 1), (ensemble, 0))
    ]

    assert said == ["by 1", "by 2", "by 1"]
    assert backend.got == [(1, True), (2, True), (1, False), (1, True)]


async def test_an_upload_that_was_sent_before_may_evict(adapters: list[Adapter]) -> None:
    """The backend may load weights later than they were sent, and answer later still."""
    arrived, may_load, loaded, may_answer = (asyncio.Event() for _ in range(4))

    class SlowForTwo(Backend):
        async def generate(
            self, request: GenerationRequest
        ) -> AsyncGenerator[list[CompletionDelta]]:
            if request.adapter is not adapters[1]:
                async for burst in super().generate(request):
                    yield burst
                return
            arrived.set()
            await may_load.wait()
            self.cached = 2
            loaded.set()
            await may_answer.wait()
            yield [CompletionDelta("by 2", finish_reason="stop")]

    told, backend = WeightsUploader(UploadLog()), SlowForTwo()
    second = asyncio.create_task(ask(told, backend, adapters[1]))
    await arrived.wait()
    first = await ask(told, backend, adapters[0])
    may_load.set()
    await loaded.wait()
    evicted = await ask(told, backend, adapters[0])
    may_answer.set()

    assert (first, evicted, await second) == ("by 1", "by 1", "by 2")
    assert backend.got == [(1, True), (1, False), (1, True)]


async def test_concurrent_first_requests(
    adapters: list[Adapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests before the backend's first response carry the weights too; none waits for another.
    The files are read once.
    """
    read: list[Path] = []

    def read_array(path: Path) -> Any:
        read.append(path)
        return files.read_array(path)

    monkeypatch.setattr(weights_upload, "read_array", read_array)
    told, backend = WeightsUploader(UploadLog()), Backend()
    backend.cached = 1

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(ask(told, backend, adapters[0])) for _ in range(4)]

    assert [each.result() for each in asked] == ["by 1"] * 4
    assert backend.got == [(1, True)] * 4
    assert len(read) == 2  # weights and config


async def test_failed_first_request(adapters: list[Adapter]) -> None:
    """After any failure the next request carries the weights again."""
    told, backend = WeightsUploader(UploadLog()), Backend()
    broken = Adapter(name="x", id=3, path=Path("/nowhere"))
    with pytest.raises(ModelUnavailable, match="Cannot read the files of adapter 'x'") as refused:
        await ask(told, backend, broken)

    assert "/nowhere" not in str(refused.value)
    assert backend.got == []
    assert await ask(told, backend, adapters[0]) == "by 1"


EVICTED = "LoRA task 1 not found in cache. Please send LoRA weights with request"


@pytest.mark.parametrize(
    ("delta", "reason", "sent"),
    [
        (CompletionDelta(), EVICTED, [False, True]),
        (CompletionDelta(), f"in ensemble 'ensemble', {EVICTED}", [False, True]),
        (CompletionDelta(), f"TritonModelException: {EVICTED}\n", [False, True]),
        (CompletionDelta(), f"TritonModelException: {EVICTED}\n\nAt:\n  model.py", [False, True]),
        (CompletionDelta("a"), EVICTED, [False]),
        (CompletionDelta(token_ids=[1]), EVICTED, [False]),
        (CompletionDelta(), "out of memory", [False]),
        (CompletionDelta(), EVICTED.replace("1", "2"), [False]),
        (CompletionDelta(), EVICTED.replace("1", "11"), [False]),
        (CompletionDelta(), EVICTED.partition(".")[0], [False]),
        (CompletionDelta(), f"cannot parse '{EVICTED}'", [False]),
        (CompletionDelta(), f"cannot parse: {EVICTED} as JSON", [False]),
    ],
)
async def test_no_retry(
    adapters: list[Adapter], delta: CompletionDelta, reason: str, sent: list[bool]
) -> None:
    """A request that has produced output, or failed for another reason than the eviction of its own
    adapter, is not sent again.
    """
    told, backend = WeightsUploader(UploadLog()), Backend()
    for adapter in adapters:
        await ask(told, backend, adapter)
    backend.got.clear()
    backend.fails_after, backend.reason = delta, reason

    with pytest.raises(InferenceFailed, match=re.escape(reason)):
        await ask(told, backend, adapters[0])
    assert [weights for _, weights in backend.got] == sent


async def test_an_eviction_has_a_reason(
    adapters: list[Adapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often a client makes a model say that its adapter was evicted, the weights are sent
    again only if others were sent since, or nothing for a minute.
    """
    told, backend = WeightsUploader(UploadLog()), Backend()
    for adapter in (adapters[1], adapters[0]):
        await ask(told, backend, adapter)
    backend.got.clear()
    backend.fails_after, backend.reason = CompletionDelta(), EVICTED

    for _ in range(3):
        with pytest.raises(InferenceFailed):
            await ask(told, backend, adapters[0])
    assert backend.got == [(1, False)] * 3

    monkeypatch.setattr(weights_upload, "UNEXPLAINED_EVICTION_S", 0.0)
    with pytest.raises(InferenceFailed):
        await ask(told, backend, adapters[0])
    assert backend.got[3:] == [(1, False), (1, True)]


def test_each_load_of_a_model_begins_without_weights() -> None:
    """Its backend has lost them. A model that is not loaded again keeps its uploader."""
    server: Any = SimpleNamespace(
        model_config=lambda *_: ENSEMBLE,
        model_facts=lambda *_: None,
        model_is_decoupled=lambda *_: True,
        options=SimpleNamespace(model_repositories=[]),
    )
    loader = ModelLoader(server)

    first = loader.load("base", 1, ModelOptions(), None)
    same = loader.load("base", 1, ModelOptions(), first)
    anew = loader.load("base", 1, ModelOptions(), None)
    loader.close()

    assert isinstance(first.model.weights_uploader, WeightsUploader)
    assert same.model.weights_uploader is first.model.weights_uploader
    assert anew.model.weights_uploader is not first.model.weights_uploader
