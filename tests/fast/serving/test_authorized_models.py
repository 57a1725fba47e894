import asyncio
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest

from openai_frontend.admission.queue import ANONYMOUS, NO_LIMITS, QueueKey
from openai_frontend.auth.api_keys import Principal
from openai_frontend.auth.rate_limit import DEFAULT_OUTPUT_TOKENS, Reservation
from openai_frontend.errors import ModelNotFound, ModelUnavailable, RateLimited
from openai_frontend.generation import (
    CompletionDelta,
    GenerationRequest,
    SamplingParams,
    SequenceDelta,
    TokenCounts,
    UsageCounter,
)
from openai_frontend.media.modalities import SpeechRequest
from openai_frontend.pooling import EmbeddingResult, EmbedRequest, ScorePairRequest, ScoreResult
from openai_frontend.request_context.context import RequestContext
from openai_frontend.serving.admission.authorized_models import AuthorizedModels
from openai_frontend.serving.admission.concurrency_limit import ConcurrencyLimiter
from openai_frontend.serving.admission.permit import Admission, Permit, queue_key
from tests.fast.auth.key_files import FakeClock, caller, key
from tests.fast.serving.fake_model import FakeModel, admission, last

LIMIT = 10_000
PROMPT = [1] * 100


def of_key(who: Principal) -> RequestContext:
    """A request with this key."""
    return RequestContext("r", principal=who, reservation=Reservation(who.rate_limiter))


def charged(model, first=None, **fields):
    """A permit for one request of a key with a token limit, and the key's rate limiter. The clock
    does not advance.
    """
    who = caller(key("k", tokens_per_minute=LIMIT, **fields), FakeClock())
    slots = ConcurrencyLimiter(9).slots("m", NO_LIMITS)
    permit = Permit(of_key(who), model, slots, first, 1, ANONYMOUS)
    return permit, who.rate_limiter


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


async def test_models_outside_of_the_key_do_not_exist():
    """The error is the same whether or not the server has the model."""
    models: Any = SimpleNamespace(get=lambda name: FakeModel(), card=lambda name: name)
    seen: Any = AuthorizedModels(models, caller(key("k", models=["a"])))

    assert (seen.get("a").name, seen.card("a")) == ("fake", "a")
    for ask in (seen.get, seen.card):
        with pytest.raises(ModelNotFound, match="'b' does not exist, or the key may not use it"):
            ask("b")
    with pytest.raises(ModelNotFound):  # refused before the model loads
        await seen.ensure_loaded("b")


async def test_complete_answer_returns_the_unused_reservation():
    model, quota = charged(FakeModel([[last(prompt=100, completion=7)]]))

    generation = model.generate(request())
    async with aclosing(generation):
        await anext(generation)
        assert used(quota) == 150
        assert [each async for each in generation] == []
    assert used(quota) == 107


async def test_tokens_are_counted_as_they_arrive_if_the_model_reports_none():
    deltas = [CompletionDelta("a", [5]), CompletionDelta("bc", [6, 7], finish_reason="stop")]
    model, quota = charged(FakeModel([deltas]))

    await run(model, request())
    assert used(quota) == 103


async def test_cancelled_answer_is_charged_the_full_reservation():
    """A client cannot save tokens by disconnecting before the end."""
    model, quota = charged(FakeModel(endless=True))
    generation = model.generate(request())
    async with aclosing(generation):
        await anext(generation)

    assert used(quota) == 150


async def test_failed_answer_is_charged_for_the_tokens_counted():
    """A client that retries is not penalized for the failure."""
    model, quota = charged(FakeModel([], failure=ValueError("x")))
    with pytest.raises(ValueError, match="x"):
        await run(model, request())

    assert used(quota) == 100


async def test_failed_answer_returns_its_reservation_when_triton_releases_it():
    who = caller(key("k", tokens_per_minute=LIMIT), FakeClock())
    context, quota = of_key(who), who.rate_limiter
    deferred = context.reservation.deferred_release
    deferred.retain()
    model: Any = FakeModel([], failure=ValueError("x"))
    with pytest.raises(ValueError, match="x"):
        async for _ in admission(1).bursts(context, model, [request()]):
            pass

    assert used(quota) == 150
    deferred.release()
    assert used(quota) == 100


LENGTHS = [(None, None), (None, 50_000), (49_900, 50_000), (900, 1000)]


@pytest.mark.parametrize(("max_tokens", "context"), LENGTHS)
async def test_unlimited_answer_reserves_at_most_the_default(max_tokens, context):
    """An answer that may fill the context reserves a number of tokens that most answers do not
    exceed.
    """
    fake = FakeModel(endless=True, max_model_len=context)
    model, quota = charged(fake)
    generation = model.generate(request(max_tokens))
    async with aclosing(generation):
        await anext(generation)

    assert used(quota) == 100 + min(max_tokens or DEFAULT_OUTPUT_TOKENS, DEFAULT_OUTPUT_TOKENS)


async def test_each_sequence_of_a_beam_search_is_charged():
    """The first sequence to end does not settle the others."""
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


async def test_rate_limited_request_does_not_reach_the_model():
    fake = FakeModel()
    model, quota = charged(fake)
    quota.reserve(LIMIT)

    with pytest.raises(RateLimited):
        await run(model, request())
    assert (fake.requests, used(quota)) == ([], LIMIT)


async def test_started_request_may_exceed_the_limit_with_its_other_choices():
    """The key owes the tokens that they use."""
    model, quota = charged(FakeModel([[last(prompt=100, completion=50)]]))
    quota.reserve(LIMIT - 150)

    await run(model, request(), request(), request())
    assert used(quota) == LIMIT + 300


async def test_text_prompt_is_estimated_until_the_model_reports_its_tokens():
    """The estimate uses the length of the text."""
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
    """Reports the given number of tokens."""

    def __init__(self, counted):
        self._counted = counted

    async def embed(self, requests):
        return [EmbeddingResult(memoryview(b""), self._counted) for _ in requests]

    async def score(self, requests):
        return [ScoreResult(0.5, self._counted) for _ in requests]


@pytest.mark.parametrize(("counted", "told"), [(90, 90), (0, 100)])
async def test_embeddings_and_scores_are_charged_by_the_reported_tokens(counted, told):
    """If the model reports none, the tokens sent to it count."""
    model, quota = charged(PoolingModel(counted))

    await model.embed([EmbedRequest(request_id="r", prompt_token_ids=PROMPT)])
    assert used(quota) == told
    await model.score([ScorePairRequest(request_id="r", prompt_token_ids=PROMPT)])
    assert used(quota) == 2 * told


class Uneven(PoolingModel):
    """Reports the tokens of every second input only."""

    async def embed(self, requests):
        counts = (self._counted if at % 2 else 0 for at in range(len(requests)))
        return [EmbeddingResult(memoryview(b""), each) for each in counts]


async def test_batch_is_charged_for_each_input():
    requests = [EmbedRequest(request_id="r", prompt_token_ids=PROMPT)] * 3
    model, quota = charged(Uneven(90), requests[0])
    model._model.images = None

    async with model as permit:
        await permit.embed(requests)

    assert used(quota) == 100 + 90 + 100


async def test_cancelled_batch_is_charged_as_reserved():
    class Hanging:
        async def embed(self, requests):
            await asyncio.Event().wait()

    model, quota = charged(Hanging())
    requests = [EmbedRequest(request_id="r", prompt_token_ids=PROMPT)] * 3

    embedding = asyncio.ensure_future(model.embed(requests))
    await asyncio.sleep(0)
    embedding.cancel()
    await asyncio.wait([embedding])

    assert used(quota) == 300


class FailingPoolingModel:
    async def embed(self, requests):
        raise ModelUnavailable("it is down")

    score = embed


async def test_failed_embeddings_and_scores_are_not_charged():
    model, quota = charged(FailingPoolingModel())

    with pytest.raises(ModelUnavailable):
        await model.embed([EmbedRequest(request_id="r", prompt_token_ids=PROMPT)])
    with pytest.raises(ModelUnavailable):
        await model.score([ScorePairRequest(request_id="r", prompt_token_ids=PROMPT)])
    assert used(quota) == 0


class Speaker:
    """Speaks for ever, and says whether its request has ended."""

    ended = False

    async def speak(self, request):
        try:
            while True:
                yield memoryview(b"\0" * 4)
        finally:
            self.ended = True


async def test_abandoned_speech_has_ended_when_its_generator_is_closed():
    """The caller frees the model's slot next."""
    speaker = Speaker()
    model, _ = charged(speaker)
    parts = model.speak(SpeechRequest(request_id="r", text="hi"))
    await anext(parts)

    await parts.aclose()

    assert speaker.ended


async def test_key_sets_priority_and_cache_owner_of_the_request():
    fake = FakeModel()
    model, _ = charged(fake, priority=3, isolate_prefix_cache=True)
    await run(model, request(), request(priority=7, cache_salt="x"))

    first, second = fake.requests
    assert (first.priority, second.priority) == (3, 7)
    owner = caller(key("k")).key.digest
    assert (first.cache_owner, second.cache_owner) == (owner, owner)
    assert (first.cache_salt, second.cache_salt) == (None, "x")


async def test_model_without_a_priority_tensor_gets_no_salt():
    """The key's priority still applies to the queue in front of the model."""
    fake = FakeModel(unsupported=frozenset({"priority", "cache_salt"}))
    model, _ = charged(fake, priority=3, isolate_prefix_cache=True)
    await run(model, request())

    assert (fake.requests[0].priority, fake.requests[0].cache_salt) == (3, None)


def test_queue_key_has_the_lower_priority_of_key_and_request():
    """A request cannot overtake the key's own priority."""
    context, digest = of_key(caller(key("k", priority=3))), key("k").digest

    assert queue_key(context) == QueueKey(digest, 3)
    assert queue_key(context, 7) == QueueKey(digest, 7)
    assert queue_key(context, -7) == QueueKey(digest, 3)


async def test_key_without_token_limits_gets_the_model_generator_itself():
    fake: Any = FakeModel()
    slots = ConcurrencyLimiter(1).slots("m", NO_LIMITS)
    permit = Permit(of_key(caller(key("k"))), fake, slots, None, 1, ANONYMOUS)
    generation: Any = permit.generate(request())

    assert generation.__qualname__ == "FakeModel.generate"


async def test_reservation_precedes_the_queue():
    """A request that its key cannot pay does not wait for a slot."""
    who = caller(key("k", tokens_per_minute=LIMIT), FakeClock())
    who.rate_limiter.reserve(LIMIT)
    limiter, model = ConcurrencyLimiter(1, max_queue_size=9), FakeModel()
    await limiter.slots_for(model).acquire(1)

    with pytest.raises(RateLimited):
        async with Admission(limiter).enter(of_key(who), model, request()):  # type: ignore[arg-type]
            pass

    assert limiter.queued == 0
