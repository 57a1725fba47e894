"""Embeddings and scores of one model, with the real core and the mock engine."""

import asyncio
import dataclasses
import gc
import struct
from pathlib import Path

import pytest

from openai_frontend.contracts.select import select_contracts
from openai_frontend.engines.engine import Engine, ModelFacts
from openai_frontend.errors import InferenceFailed, InvalidRequest, ModelUnavailable
from openai_frontend.generation import EmbedRequest, GenerationRequest, ScorePairRequest
from openai_frontend.models.served_model import ServedModel
from openai_frontend.triton import _core
from tests import mock_models
from tests.mock_models import serving
from tests.unit.contracts.recorded import NVIDIA_VLLM, tensors

EMBEDDING = EmbedRequest(request_id="e", prompt_token_ids=[1, 2, 3])
PAIR = ScorePairRequest(request_id="s", prompt_token_ids=[1, 2, 3, 4], token_type_ids=[0, 0, 1, 1])


async def test_embedding_is_float32(tmp_path: Path) -> None:
    """The result stays valid after its response was released."""

    mock_models.write(tmp_path, "m", dimensions=5)
    async with serving(tmp_path) as registry:
        result = await registry.get("m").embed(EMBEDDING)
        again = await registry.get("m").embed(EMBEDDING)
    gc.collect()
    assert (result.embedding.format, result.embedding.nbytes, result.prompt_tokens) == ("f", 20, 3)
    assert struct.unpack("<5f", result.embedding) == tuple(again.embedding)


async def test_dimensions_reach_the_engine(tmp_path: Path) -> None:
    """A request for a shorter vector gets one."""

    mock_models.write(tmp_path, "m", dimensions=5)
    async with serving(tmp_path) as registry:
        model = registry.get("m")
        shorter = await model.embed(EmbedRequest(request_id="e", prompt="a", dimensions=2))
    assert len(shorter.embedding) == 2


async def test_score(tmp_path: Path) -> None:
    """The same pair has the same score; token types count."""

    mock_models.write(tmp_path, "m")
    untyped = ScorePairRequest(request_id="s", prompt_token_ids=PAIR.prompt_token_ids)
    async with serving(tmp_path) as registry:
        model = registry.get("m")
        first, again, other = [await model.score(pair) for pair in (PAIR, PAIR, untyped)]
    assert first == again
    assert first.score != other.score
    assert first.prompt_tokens == 4


@pytest.mark.parametrize("tasks", [["generate"], ["embed"], ["score"], ["embed", "score"]])
async def test_tasks_of_the_engine(tmp_path: Path, tasks: list[str]) -> None:
    """Only the engine's tasks are served."""

    mock_models.write(tmp_path, "m", tasks=tasks)
    async with serving(tmp_path) as registry:
        assert registry.get("m").tasks == set(tasks)


def test_tasks_by_tensors() -> None:
    """For another backend's model the tensors decide."""

    plain = {"input": tensors("text_input:STRING"), "output": tensors("text_output:STRING")}
    found = [select_contracts(config) for config in (NVIDIA_VLLM, plain)]
    assert [chosen.generation is not None for chosen in found] == [True, True]
    assert [chosen.embedding is not None for chosen in found] == [True, False]
    with pytest.raises(ModelUnavailable):
        select_contracts({"input": tensors("x:FP32"), "output": tensors("y:FP32")})


async def test_unsupported_tasks(tmp_path: Path) -> None:
    """Each task has its own error message."""

    mock_models.write(tmp_path, "m")
    async with serving(tmp_path) as registry:
        model = dataclasses.replace(
            registry.get("m"), contract=None, embedding_contract=None, score_contract=None
        )
        for asked, message in (
            (model.embed(EMBEDDING), "does not support embeddings"),
            (model.score(PAIR), "is not a cross-encoder"),
            (anext(model.generate(GenerationRequest(request_id="g"))), "does not generate text"),
        ):
            with pytest.raises(InvalidRequest, match=message) as refused:
                await asked
            assert refused.value.param == "model"


class Hangs(Engine):
    """Embeds for ever, and says when it has begun and when it was ended."""

    begun: asyncio.Event
    ended: asyncio.Event

    def load(self, model):
        return ModelFacts(max_model_len=10, tasks=("embed",))

    def generate(self, request, sink):
        raise AssertionError("a pooling model is never asked to generate")

    async def embed(self, request):
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


HANGS = mock_models.CONFIG.replace('"mock"', f'"{__name__}:Hangs"')


async def test_cancelled_embedding(tmp_path: Path) -> None:
    """Cancelling it stops the engine's work."""

    mock_models.write(tmp_path, "m", config=HANGS)
    Hangs.begun, Hangs.ended = asyncio.Event(), asyncio.Event()
    async with serving(tmp_path) as registry:
        waiting = asyncio.create_task(registry.get("m").embed(EMBEDDING))
        await Hangs.begun.wait()
        waiting.cancel()
        await asyncio.wait_for(Hangs.ended.wait(), 5)
    assert waiting.cancelled()
    assert _core.live_counts()["requests"] == 0


async def test_priorities(tmp_path: Path) -> None:
    """One for Triton's own queue, and one that only the engine knows."""

    mock_models.write(tmp_path, "m", answer_tokens=1)
    async with serving(tmp_path) as registry:
        for priority in (-5, 5):
            request = GenerationRequest(request_id="r", prompt="a", priority=priority)
            [[delta]] = [burst async for burst in registry.get("m").generate(request)]
            assert delta.finish_reason == "stop"


async def test_invalid_response(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A response without a score is the model's fault, not the client's."""

    mock_models.write(tmp_path, "m")
    async with serving(tmp_path) as registry:
        model: ServedModel = registry.get("m")
        contract = model.score_contract
        assert contract is not None
        embedding = {"embedding_request": contract.encode(PAIR)["score_request"]}
        monkeypatch.setattr(type(contract), "encode", lambda *_: embedding)
        with pytest.raises(InferenceFailed, match="no score"):
            await model.score(PAIR)
