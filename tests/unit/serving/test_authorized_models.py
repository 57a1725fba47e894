from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest

from openai_frontend.admission.limits import QueueKey
from openai_frontend.auth.rate_limit import DEFAULT_OUTPUT_TOKENS, Reservation
from openai_frontend.errors import ModelNotFound, RateLimited
from openai_frontend.generation import (
    CompletionDelta,
    EmbeddingResult,
    EmbedRequest,
    GenerationRequest,
    SamplingParams,
    ScorePairRequest,
    ScoreResult,
    SequenceDelta,
    TokenCounts,
    UsageCounter,
)
from openai_frontend.serving.admission.authorized_models import AuthorizedModels
from openai_frontend.serving.admission.metered_model import MeteredModel
from tests.unit.auth.key_files import FakeClock, caller, key
from tests.unit.serving.fake_model import FakeModel, last

LIMIT = 10_000
PROMPT = [1] * 100


def charged(model, **fields):
    """A model for one request of a key with a limit, and the key's quota; time stands still."""
    who = caller(key("k", tokens_per_minute=LIMIT, **fields), FakeClock())
    return MeteredModel(model, who, Reservation(who.rate_limiter)), who.rate_limiter


def used(quota):
    [standing] = quota.statuses()
    return round(standing.reset_s * LIMIT / 60)


def request(max_tokens=50, sequences=1, **fields):
    return GenerationRequest(
        request_id="r",
        prompt_token_ids=PROMPT,
        sampling_params=SamplingParams(max_tokens=max_tokens),
        sequences=sequences,
        usage=UsageCounter(len(PROMPT), sequences=sequences),
        **fields,
    )


async def run(model, *requests):
    for each in requests:
        async for _ in model.generate(each):
            pass


async def test_models_of_others():
    """They do not exist for this key, whether or not they do for others."""
    models: Any = SimpleNamespace(get=lambda name: FakeModel(), card=lambda name: name)
    seen: Any = AuthorizedModels(models, caller(key("k", models=["a"])))

    assert (seen.get("a").name, seen.card("a")) == ("fake", "a")
    for ask in (seen.get, seen.card):
        with pytest.raises(ModelNotFound, match="'b' does not exist, or the key may not use it"):
            ask("b")
    with pytest.raises(ModelNotFound):  # before it is loaded
        await seen.ensure_loaded("b")


async def test_a_whole_answer_is_charged_as_it_was():
    """What was reserved and not used comes back."""
    model, quota = charged(FakeModel([[last(prompt=100, completion=7)]]))

    generation = model.generate(request())
    async with aclosing(generation):
        await anext(generation)
        assert used(quota) == 150
        assert [each async for each in generation] == []
    assert used(quota) == 107


async def test_a_model_that_counts_nothing():
    """Then its tokens are counted as they come."""
    deltas = [CompletionDelta("a", [5]), CompletionDelta("bc", [6, 7], finish_reason="stop")]
    model, quota = charged(FakeModel([deltas]))

    await run(model, request())
    assert used(quota) == 103


async def test_an_answer_that_is_cut_off():
    """It is charged as it was reserved: nobody saves tokens by going away before the end."""
    model, quota = charged(FakeModel(endless=True))
    generation = model.generate(request())
    async with aclosing(generation):
        await anext(generation)

    assert used(quota) == 150


async def test_an_answer_that_fails():
    """It is charged as far as it was counted: a client that tries again is not punished for it."""
    model, quota = charged(FakeModel([], failure=ValueError("x")))
    with pytest.raises(ValueError, match="x"):
        await run(model, request())

    assert used(quota) == 100


async def test_an_answer_that_fails_while_triton_works_on_it():
    """What it did not use comes back when Triton releases it."""
    model, quota = charged(FakeModel([], failure=ValueError("x")))
    lease = model._reservation.lease
    lease.retain()
    with pytest.raises(ValueError, match="x"):
        await run(model, request())

    assert used(quota) == 150
    lease.release()
    assert used(quota) == 100


LENGTHS = [(None, None), (None, 50_000), (49_900, 50_000), (900, 1000)]


@pytest.mark.parametrize(("max_tokens", "context"), LENGTHS)
async def test_an_answer_of_any_length(max_tokens, context):
    """One that may fill the context reserves what most answers do not exceed."""
    fake = FakeModel(endless=True, max_model_len=context)
    model, quota = charged(fake)
    generation = model.generate(request(max_tokens))
    async with aclosing(generation):
        await anext(generation)

    assert used(quota) == 100 + min(max_tokens or DEFAULT_OUTPUT_TOKENS, DEFAULT_OUTPUT_TOKENS)


async def test_the_sequences_of_a_beam_search():
    """Each is charged as an answer of its own, and the first that ends does not end them all."""
    first, second = (
        SequenceDelta("a", finish_reason="stop", counts=TokenCounts(100, 5), sequence=at)
        for at in range(2)
    )
    model, quota = charged(FakeModel([[first], [second]]))
    generation = model.generate(request(sequences=2))
    async with aclosing(generation):
        await anext(generation)
    assert used(quota) == 300

    model, quota = charged(FakeModel([[first], [second]]))
    await run(model, request(sequences=2))
    assert used(quota) == 210


async def test_no_tokens_left():
    """The request is refused before the model hears of it."""
    fake = FakeModel()
    model, quota = charged(fake)
    quota.reserve(LIMIT)

    with pytest.raises(RateLimited):
        await run(model, request())
    assert (fake.requests, used(quota)) == ([], LIMIT)


async def test_the_other_choices_of_a_request():
    """They are not refused once the first has begun: what they use is owed."""
    model, quota = charged(FakeModel([[last(prompt=100, completion=50)]]))
    quota.reserve(LIMIT - 150)

    await run(model, request(), request(), request())
    assert used(quota) == LIMIT + 300


async def test_a_prompt_that_only_the_model_counts():
    """It is guessed by its length until the model has said."""
    model, quota = charged(FakeModel([[last(prompt=9, completion=1)]]))
    asked = GenerationRequest(
        request_id="r", prompt="x" * 400, sampling_params=SamplingParams(max_tokens=1)
    )
    generation = model.generate(asked)
    async with aclosing(generation):
        await anext(generation)
        assert used(quota) == 101
        assert [each async for each in generation] == []

    assert used(quota) == 10


class PoolingModel:
    """Reads so many tokens."""

    def __init__(self, counted):
        self._counted = counted

    async def embed(self, request):
        return EmbeddingResult(memoryview(b""), self._counted)

    async def score(self, request):
        return ScoreResult(0.5, self._counted)


@pytest.mark.parametrize(("counted", "told"), [(90, 90), (0, 100)])
async def test_texts(counted, told):
    """Vectors and scores are charged by what the model has read, or by what it was sent."""
    model, quota = charged(PoolingModel(counted))

    await model.embed(EmbedRequest(request_id="r", prompt_token_ids=PROMPT))
    assert used(quota) == told
    await model.score(ScorePairRequest(request_id="r", prompt_token_ids=PROMPT))
    assert used(quota) == 2 * told


async def test_the_keys_place_and_cache():
    """They reach the model in the request's own fields."""
    fake = FakeModel()
    model, _ = charged(fake, priority=3, isolate_prefix_cache=True)
    await run(model, request(), request(priority=7, cache_salt="x"))

    first, second = fake.requests
    assert (first.priority, second.priority) == (3, 7)
    assert first.cache_salt != second.cache_salt
    assert second.cache_salt.endswith("/x")


async def test_a_model_without_priorities():
    """Its contract leaves the key's out; it counts before the model, where requests wait."""
    fake = FakeModel(unsupported=frozenset({"priority", "cache_salt"}))
    model, _ = charged(fake, priority=3, isolate_prefix_cache=True)
    await run(model, request())

    assert (fake.requests[0].priority, fake.requests[0].cache_salt) == (3, None)


async def test_whose_turn_it_is():
    """A request waits behind its key's others, in the key's place or behind it."""
    model, _ = charged(FakeModel(), priority=3)
    digest = key("k").digest

    assert model.queue_key(0) == QueueKey(digest, 3)
    assert model.queue_key(7) == QueueKey(digest, 7)
    assert model.queue_key(-7) == QueueKey(digest, 3)


async def test_a_key_without_token_limits():
    """The model's own deltas come, through nothing."""
    fake: Any = FakeModel()
    free = caller(key("k"))
    generation: Any = MeteredModel(fake, free, Reservation(free.rate_limiter)).generate(request())

    assert generation.__qualname__ == "FakeModel.generate"
