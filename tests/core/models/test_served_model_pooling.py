"""Embeddings and scores of one model, with the real core and the mock engine."""

import asyncio
import dataclasses
import gc
import struct
from pathlib import Path

import pytest

from openai_frontend.contracts.select import SelectedContracts
from openai_frontend.engines.engine import Engine, ModelFacts
from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import GenerationRequest
from openai_frontend.media.modalities import ImageInput, ImageSupport
from openai_frontend.pooling import EmbeddingResult, EmbedRequest, ScorePairRequest
from openai_frontend.triton import _core
from tests import mock_models
from tests.mock_models import serving

EMBEDDING = EmbedRequest(request_id="e", prompt_token_ids=[1, 2, 3])
PAIR = ScorePairRequest(request_id="s", prompt_token_ids=[1, 2, 3, 4], token_type_ids=[0, 0, 1, 1])


async def test_embedding_is_float32(tmp_path: Path) -> None:
    """The result stays valid after its response was released."""

    mock_models.write(tmp_path, "m", dimensions=5)
    async with serving(tmp_path) as registry:
        [result] = await registry.get("m").embed([EMBEDDING])
        [again] = await registry.get("m").embed([EMBEDDING])
    gc.collect()
    assert (result.embedding.format, result.embedding.nbytes, result.prompt_tokens) == ("f", 20, 3)
    assert struct.unpack("<5f", result.embedding) == tuple(again.embedding)


async def test_dimensions_reach_the_engine(tmp_path: Path) -> None:
    """A request for a shorter vector gets one."""

    mock_models.write(tmp_path, "m", dimensions=5)
    async with serving(tmp_path) as registry:
        model = registry.get("m")
        [shorter] = await model.embed([EmbedRequest(request_id="e", prompt="a", dimensions=2)])
    assert len(shorter.embedding) == 2


async def test_misspelt_field_is_an_error(tmp_path: Path) -> None:
    """A model that generates no text supports no field, but knows their names."""

    mock_models.write(tmp_path, "m", tasks=["embed"])
    async with serving(tmp_path) as registry:
        model = registry.get("m")
        assert not model.supports("temperature")
        with pytest.raises(ValueError, match="'temprature' is not a field"):
            model.supports("temprature")


async def test_score(tmp_path: Path) -> None:
    """The same pair has the same score; token types count."""

    mock_models.write(tmp_path, "m")
    untyped = ScorePairRequest(request_id="s", prompt_token_ids=PAIR.prompt_token_ids)
    async with serving(tmp_path) as registry:
        model = registry.get("m")
        [first], [again], [other] = [await model.score([pair]) for pair in (PAIR, PAIR, untyped)]
    assert first == again
    assert first.score != other.score
    assert first.prompt_tokens == 4


@pytest.mark.parametrize("tasks", [["generate"], ["embed"], ["score"], ["embed", "score"]])
async def test_tasks_of_the_engine(tmp_path: Path, tasks: list[str]) -> None:
    """Only the engine's tasks are served."""

    mock_models.write(tmp_path, "m", tasks=tasks)
    async with serving(tmp_path) as registry:
        assert registry.get("m").tasks == set(tasks)


async def test_unsupported_tasks(tmp_path: Path) -> None:
    """Each task has its own error message."""

    mock_models.write(tmp_path, "m")
    async with serving(tmp_path) as registry:
        model = dataclasses.replace(
            registry.get("m"), contracts=SelectedContracts(name="none", reason="A test.")
        )
        for asked, message in (
            (model.embed([EMBEDDING]), "does not support embeddings"),
            (model.score([PAIR]), "is not a cross-encoder"),
            (anext(model.generate(GenerationRequest(request_id="g"))), "does not generate text"),
        ):
            with pytest.raises(InvalidRequest, match=message) as refused:
                await asked
            assert refused.value.param == "model"


BATCH = [
    EmbedRequest(request_id="e", prompt_token_ids=ids, param=f"input[{at + 5}]")
    for at, ids in enumerate(([1, 2, 3], [4], [5] * 9, [1, 2, 3]))
]


async def test_batch_of_embeddings(tmp_path: Path) -> None:
    """Each vector and token count is that of the input alone."""

    mock_models.write(tmp_path, "m", dimensions=5)
    async with serving(tmp_path) as registry:
        model = registry.get("m")
        together = await model.embed(BATCH)
        alone = [result for each in BATCH for result in await model.embed([each])]
    gc.collect()
    assert model.batch_limit("embed", tokenized=True) == 32
    assert together == alone
    assert [each.prompt_tokens for each in together] == [3, 1, 9, 3]


async def test_batch_of_scores(tmp_path: Path) -> None:
    """With token types or without."""

    pairs = [PAIR, dataclasses.replace(PAIR, prompt_token_ids=[1], token_type_ids=[0])]
    untyped = [dataclasses.replace(each, token_type_ids=None) for each in pairs]
    mock_models.write(tmp_path, "m")
    async with serving(tmp_path) as registry:
        model = registry.get("m")
        for given in (pairs, untyped):
            alone = [result for each in given for result in await model.score([each])]
            assert await model.score(given) == alone
    assert [each.prompt_tokens for each in alone] == [4, 1]


async def test_prompt_tokens_of_each_input_are_counted(tmp_path: Path) -> None:
    """The histogram has an observation for each input of a batch."""

    mock_models.write(tmp_path, "m")
    async with serving(tmp_path) as registry:
        model = registry.get("m")
        await model.embed(BATCH)
        [sample] = [
            each
            for metric in model.metrics.registry.collect()
            for each in metric.samples
            if each.name == "openai_frontend_prompt_tokens_count"
        ]
    assert sample.value == 4


async def test_uncounted_prompts_count_as_the_tokens_sent(tmp_path: Path) -> None:
    """Generic embedding models report no counts."""
    mock_models.write(tmp_path, "m")
    async with serving(tmp_path) as registry:
        model = registry.get("m")
        model._count_prompts(BATCH, [EmbeddingResult(memoryview(b""), 0) for _ in BATCH])
        [sample] = [
            each
            for metric in model.metrics.registry.collect()
            for each in metric.samples
            if each.name == "openai_frontend_prompt_tokens_sum"
        ]
    assert sample.value == sum(len(each.prompt_token_ids or ()) for each in BATCH) > 0


class Refuses(Engine):
    """Refuses the input that begins with 5, and returns vectors of any length."""

    running = 0

    def load(self, model):
        return ModelFacts(max_model_len=10, tasks=("embed",), dimensions=2)

    def generate(self, request, sink):
        raise AssertionError("a pooling model is never asked to generate")

    async def embed(self, request):
        Refuses.running += 1
        try:
            await asyncio.sleep(0)
            if request.prompt_token_ids[0] == 5:
                raise ValueError("fives are refused")
            if request.prompt_token_ids[0] == 6:
                return EmbeddingResult(memoryview(b"\0" * 8), 1)
            await asyncio.Event().wait()
        finally:
            Refuses.running -= 1


REFUSES = mock_models.CONFIG.replace('"mock"', f'"{__name__}:Refuses"')


@pytest.mark.parametrize("alone", [False, True], ids=["in a batch", "alone"])
@pytest.mark.parametrize(
    ("dimensions", "expected"),
    [(None, ("fives are refused", "input[7]")), (2, ("input[7]: fives are refused", None))],
)
async def test_engine_refuses_one_input(
    tmp_path: Path, dimensions: int | None, expected: tuple[str, str | None], *, alone: bool
) -> None:
    """The error has the input's field, or names it where the dimensions may be the reason. The rest
    of the batch is cancelled.
    """

    mock_models.write(tmp_path, "m", config=REFUSES)
    given = [each for each in BATCH if each.param == "input[7]" or not alone]
    batch = [dataclasses.replace(each, dimensions=dimensions) for each in given]
    async with serving(tmp_path) as registry:
        with pytest.raises(InvalidRequest) as refused:
            await registry.get("m").embed(batch)
        assert Refuses.running == 0
    assert (refused.value.message, refused.value.param) == expected
    assert refused.value.foreign


class Blind(Engine):
    """Refuses the second image of each request."""

    def load(self, model):
        images = ImageSupport(max_per_request=2, max_tokens_per_image=1)
        return ModelFacts(max_model_len=10, tasks=("embed",), dimensions=2, images=images)

    def generate(self, request, sink):
        raise AssertionError("a pooling model is never asked to generate")

    async def embed(self, request):
        raise ValueError("image[1]: cannot be decoded as PNG")


@pytest.mark.parametrize("dimensions", [None, 2])
async def test_engine_refuses_an_image(tmp_path: Path, dimensions: int | None) -> None:
    """The error is that of an image in a chat."""

    config = mock_models.CONFIG.replace('"mock"', f'"{__name__}:Blind"')
    mock_models.write(tmp_path, "m", config=config)
    places = [f"messages[0].content[{at}].image_url.url" for at in (1, 3)]
    images = [
        ImageInput(base64="AAAA", digest="ab" * 32, width=2, height=2, format="png", param=each)
        for each in places
    ]
    request = EmbedRequest(
        request_id="e", prompt="hi", images=images, param="messages", dimensions=dimensions
    )
    async with serving(tmp_path) as registry:
        with pytest.raises(InvalidRequest) as refused:
            await registry.get("m").embed([request])
    assert refused.value.message == f"Invalid '{places[1]}': cannot be decoded as PNG"
    assert (refused.value.param, refused.value.code) == (places[1], "image_parse_error")


class Hangs(Engine):
    """Embeds for ever, and says when it has begun and when it was ended."""

    begun: asyncio.Event
    ended: asyncio.Event
    running = 0

    def load(self, model):
        return ModelFacts(max_model_len=10, tasks=("embed",))

    def generate(self, request, sink):
        raise AssertionError("a pooling model is never asked to generate")

    async def embed(self, request):
        Hangs.running += 1
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            Hangs.running -= 1
            self.ended.set()


HANGS = mock_models.CONFIG.replace('"mock"', f'"{__name__}:Hangs"')


@pytest.mark.parametrize("inputs", [1, 4, 32])
async def test_cancelled_embedding(tmp_path: Path, inputs: int) -> None:
    """Cancelling it stops the engine's work on every input."""

    mock_models.write(tmp_path, "m", config=HANGS)
    Hangs.begun, Hangs.ended = asyncio.Event(), asyncio.Event()
    async with serving(tmp_path) as registry:
        waiting = asyncio.create_task(registry.get("m").embed([EMBEDDING] * inputs))
        while Hangs.running < inputs:
            await Hangs.begun.wait()
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait_for(Hangs.ended.wait(), 30)
    assert (waiting.cancelled(), Hangs.running) == (True, 0)
    assert _core.live_counts()["requests"] == 0


async def test_priorities(tmp_path: Path) -> None:
    """One for Triton's own queue, and one that only the engine knows."""

    mock_models.write(tmp_path, "m", answer_tokens=1)
    async with serving(tmp_path) as registry:
        for priority in (-5, 5):
            request = GenerationRequest(request_id="r", prompt="a", priority=priority)
            [[delta]] = [burst async for burst in registry.get("m").generate(request)]
            assert delta.finish_reason == "stop"
