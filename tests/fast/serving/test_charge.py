"""What a request's work charges to its key."""

from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from openai_frontend.auth.rate_limit import KeyLimits, RateLimiter, Reservation
from openai_frontend.errors import RateLimited
from openai_frontend.pooling import EmbeddingResult, EmbedRequest
from openai_frontend.serving.admission.charge import Charge
from tests.fast.serving.fake_pooling_model import FakePoolingModel


async def test_work_that_the_key_has_no_tokens_for_does_not_begin():
    """Not even its coroutine, which nobody would await."""
    limiter = RateLimiter("key", KeyLimits(tokens_per_minute=2))
    limiter.reserve(2)
    model: Any = FakePoolingModel()
    charge = Charge(model, Reservation(limiter))
    begun: list[Sequence[EmbedRequest]] = []

    def embed(requests: Sequence[EmbedRequest]) -> Coroutine[Any, Any, list[EmbeddingResult]]:
        begun.append(requests)
        raise AssertionError

    with pytest.raises(RateLimited):
        await charge.pooling([EmbedRequest(request_id="r", prompt_token_ids=[1, 2, 3])], embed)
    assert begun == []
