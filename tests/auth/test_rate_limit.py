import pytest

from openai_frontend.auth.keys import KeyLimits
from openai_frontend.auth.rate_limit import RateLimiter, RateLimitStatus, TokenBucket
from openai_frontend.errors import RateLimited
from tests.auth.key_files import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


def quota(clock, **limits):
    return RateLimiter("k", KeyLimits(**limits), clock)


def test_requests_of_a_minute(clock):
    """So many are let in at once; the next when a place has come back, evenly over the minute."""
    two = quota(clock, requests_per_minute=2)
    two.begin()
    two.begin()

    with pytest.raises(RateLimited, match="'k' on requests per minute: limit 2") as refused:
        two.begin()
    clock.now_s += 30
    two.begin()

    assert (refused.value.type, refused.value.retry_after_s) == ("requests", 30)
    with pytest.raises(RateLimited):
        two.begin()


def test_a_refused_request_costs_nothing(clock):
    """Whoever knocks again and again is let in as soon as one who waits."""
    one = quota(clock, requests_per_minute=1)
    one.begin()
    for _ in range(5):
        with pytest.raises(RateLimited):
            one.begin()
    clock.now_s += 60

    one.begin()
    assert one.running == 2


def test_requests_at_once(clock):
    """A request that has ended leaves its place; who finds none is told to come soon."""
    one = quota(clock, max_concurrent_requests=1)
    one.begin()
    with pytest.raises(RateLimited, match="limit of 1 concurrent") as refused:
        one.begin()
    one.end()

    one.begin()
    assert (refused.value.retry_after_s, one.running) == (1, 1)


def test_no_limits(clock):
    """A key without limits is never refused, and nothing is told of it."""
    free = quota(clock)
    for _ in range(1000):
        free.begin()
        free.reserve(10**9)

    assert (free.statuses(), free.limits_tokens, free.has_rate_limits) == ([], False, False)


def test_tokens_are_taken_before_they_are_used(clock):
    """What is reserved is not there for others, and comes back where it was not used."""
    hundred = quota(clock, tokens_per_minute=100)
    hundred.reserve(80)
    with pytest.raises(RateLimited) as refused:
        hundred.reserve(30)
    hundred.settle(reserved=80, used=10)

    hundred.reserve(90)
    assert (refused.value.type, refused.value.retry_after_s) == ("tokens", 6)


def test_tokens_beyond_the_reserved(clock):
    """They are owed: the next request waits until they have come back."""
    hundred = quota(clock, tokens_per_minute=100)
    hundred.reserve(10)
    hundred.settle(reserved=10, used=160)

    with pytest.raises(RateLimited) as refused:
        hundred.reserve(40)
    assert refused.value.retry_after_s == 60


def test_more_than_a_minutes_worth(clock):
    """It waits for a full minute's worth, and owes the rest: it is not refused for ever."""
    hundred = quota(clock, tokens_per_minute=100)
    hundred.reserve(1)
    with pytest.raises(RateLimited) as refused:
        hundred.reserve(300)
    clock.now_s += refused.value.retry_after_s

    hundred.reserve(300)
    with pytest.raises(RateLimited) as owing:
        hundred.reserve(1)
    assert owing.value.retry_after_s == pytest.approx(201 * 60 / 100)


def test_what_belongs_to_a_request_that_has_begun(clock):
    """It is never refused, and owed."""
    hundred = quota(clock, tokens_per_minute=100)
    hundred.reserve(100)

    hundred.reserve(100, allow_debt=True)
    assert hundred.statuses() == [RateLimitStatus("tokens", 100, 0, 120)]


def test_standings(clock):
    """What clients are told: the limit, what is left, and when all is there again."""
    both = quota(clock, requests_per_minute=60, tokens_per_minute=600)
    both.begin()
    both.reserve(60)
    clock.now_s += 0.5

    assert both.statuses() == [
        RateLimitStatus("requests", 60, 59, 0.5),
        RateLimitStatus("tokens", 600, 545, 5.5),
    ]


def test_other_limits(clock):
    """New limits hold at once; what has been used stays used, and who runs still counts."""
    changed = quota(clock, requests_per_minute=10, max_concurrent_requests=5)
    for _ in range(4):
        changed.begin()

    changed.set_limits(KeyLimits(requests_per_minute=5, max_concurrent_requests=4))
    with pytest.raises(RateLimited, match="limit of 4 concurrent"):
        changed.begin()
    changed.set_limits(KeyLimits(requests_per_minute=5, tokens_per_minute=7))

    assert [each.remaining for each in changed.statuses()] == [1, 7]


def test_a_bucket_holds_no_more_than_a_minute():
    """Who was away for a day has a minute's worth."""
    bucket = TokenBucket(60, 0)

    assert bucket.status("requests", 86_400).remaining == 60
