import pytest

from openai_frontend.auth.rate_limit import (
    KeyLimits,
    RateLimiter,
    RateLimitStatus,
    Reservation,
    TokenBucket,
)
from openai_frontend.errors import RateLimited
from tests.fast.auth.key_files import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


def quota(clock, **limits):
    return RateLimiter("k", KeyLimits(**limits), clock)


async def test_requests_per_minute(clock):
    """A full bucket allows a burst; then requests are allowed at an even rate."""
    two = quota(clock, requests_per_minute=2)
    await two.begin()
    await two.begin()

    with pytest.raises(RateLimited, match="'k' on requests per minute: limit 2") as refused:
        await two.begin()
    clock.now_s += 30
    await two.begin()

    assert (refused.value.type, refused.value.retry_after_s) == ("requests", 30)
    with pytest.raises(RateLimited):
        await two.begin()


async def test_rejected_request_costs_nothing(clock):
    """Retrying does not delay the next accepted request."""
    one = quota(clock, requests_per_minute=1)
    await one.begin()
    for _ in range(5):
        with pytest.raises(RateLimited):
            await one.begin()
    clock.now_s += 60

    await one.begin()
    assert one.running == 2


async def test_concurrent_requests(clock):
    """An ended request frees its slot; a rejection has a Retry-After."""
    one = quota(clock, max_concurrent_requests=1)
    await one.begin()
    with pytest.raises(RateLimited, match="limit of 1 concurrent") as refused:
        await one.begin()
    one.end()

    await one.begin()
    assert (refused.value.retry_after_s, one.running) == (1, 1)


async def test_key_without_limits(clock):
    """It is never rejected, and has no rate-limit status."""
    free = quota(clock)
    for _ in range(1000):
        await free.begin()
        free.reserve(10**9)

    assert (free.statuses(), free.limits_tokens, free.has_rate_limits) == ([], False, False)


def test_reservation_has_a_lease_only_for_limits(clock):
    """Triton's release of a request gives back what a limit counts; without limits there is
    nothing to wait for.
    """
    calls = []
    waiting = Reservation(quota(clock, max_concurrent_requests=1))
    waiting.deferred_release.retain()
    waiting.when_released(lambda: calls.append("limited"))
    free = Reservation(quota(clock))
    free.when_released(lambda: calls.append("free"))

    assert (free.deferred_release, calls) == (None, ["free"])
    waiting.deferred_release.release()
    assert calls == ["free", "limited"]


def test_tokens_are_reserved_and_settled(clock):
    """Other requests cannot use reserved tokens; unused ones are returned."""
    hundred = quota(clock, tokens_per_minute=100)
    hundred.reserve(80)
    with pytest.raises(RateLimited) as refused:
        hundred.reserve(30)
    hundred.settle(reserved=80, used=10)

    hundred.reserve(90)
    assert (refused.value.type, refused.value.retry_after_s) == ("tokens", 6)


def test_tokens_beyond_the_reservation_become_debt(clock):
    """The next request waits until the debt is paid."""
    hundred = quota(clock, tokens_per_minute=100)
    hundred.reserve(10)
    hundred.settle(reserved=10, used=160)

    with pytest.raises(RateLimited) as refused:
        hundred.reserve(40)
    assert refused.value.retry_after_s == 60


def test_request_larger_than_the_bucket(clock):
    """It needs a full bucket and leaves a debt, instead of being rejected forever."""
    hundred = quota(clock, tokens_per_minute=100)
    hundred.reserve(1)
    with pytest.raises(RateLimited) as refused:
        hundred.reserve(300)
    clock.now_s += refused.value.retry_after_s

    hundred.reserve(300)
    with pytest.raises(RateLimited) as owing:
        hundred.reserve(1)
    assert owing.value.retry_after_s == pytest.approx(201 * 60 / 100)


def test_started_request_may_go_into_debt(clock):
    hundred = quota(clock, tokens_per_minute=100)
    hundred.reserve(100)

    hundred.reserve(100, allow_debt=True)
    assert hundred.statuses() == [RateLimitStatus("tokens", 100, 0, 120)]


async def test_statuses(clock):
    """They have the limit, what remains and the time until the bucket is full."""
    both = quota(clock, requests_per_minute=60, tokens_per_minute=600)
    await both.begin()
    both.reserve(60)
    clock.now_s += 0.5

    assert both.statuses() == [
        RateLimitStatus("requests", 60, 59, 0.5),
        RateLimitStatus("tokens", 600, 545, 5.5),
    ]


async def test_changed_limits_apply_at_once(clock):
    """Used amounts stay used, and running requests still count."""
    changed = quota(clock, requests_per_minute=10, max_concurrent_requests=5)
    for _ in range(4):
        await changed.begin()

    changed.set_limits(KeyLimits(requests_per_minute=5, max_concurrent_requests=4))
    with pytest.raises(RateLimited, match="limit of 4 concurrent"):
        await changed.begin()
    changed.set_limits(KeyLimits(requests_per_minute=5, tokens_per_minute=7))

    assert [each.remaining for each in changed.statuses()] == [1, 7]


def test_bucket_never_exceeds_its_limit():
    """A key that was idle for a day has one minute's worth."""
    bucket = TokenBucket(60, 0)

    assert bucket.status("requests", 86_400).remaining == 60
