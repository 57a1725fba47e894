"""Rate and concurrency limits of one key. The clock is passed in."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, Protocol

from openai_frontend.admission.deferred_release import DeferredRelease
from openai_frontend.errors import RateLimited

Clock = Callable[[], float]  # monotonic seconds

# Output tokens reserved for a request that sets no limit, or one that fills the context: few
# answers are longer.
DEFAULT_OUTPUT_TOKENS = 1024

_CONCURRENCY_RETRY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """Limits of one key; None: only the server's own limits apply."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent_requests: int | None = None


UNLIMITED = KeyLimits()


class RateLimitStatus(NamedTuple):
    """One limit per minute, as the `x-ratelimit-*` headers report it."""

    kind: Literal["requests", "tokens"]
    limit: int  # per minute
    remaining: int
    reset_s: float  # until all is available again


class SharedRequestLimits(Protocol):
    """The requests per minute of all keys, counted for several gateways together."""

    async def hit(self, name: str, per_minute: int) -> tuple[bool, RateLimitStatus] | None:
        """Count a request of the key `name` if its limit allows it.

        Returns whether it does, and the state after it; None if the storage does not answer.
        """


class TokenBucket:
    """A limit per minute that refills continuously. The level may be negative: then callers wait
    until the debt is paid.
    """

    __slots__ = ("_level", "_per_s", "_updated_s", "per_minute")

    def __init__(self, per_minute: int, now_s: float) -> None:
        self.per_minute = per_minute
        self._per_s = per_minute / 60
        self._level = float(per_minute)
        self._updated_s = now_s

    def resize(self, per_minute: int) -> None:
        """Change the limit; what has been used stays used."""
        self._level += per_minute - self.per_minute
        self.per_minute = per_minute
        self._per_s = per_minute / 60

    def wait_s(self, amount: int, now_s: float) -> float:
        """Seconds until `amount` is available; until the bucket is full if that is less."""
        lacking = min(amount, self.per_minute) - self._refilled(now_s)
        return lacking / self._per_s if lacking > 0 else 0.0

    def take(self, amount: int) -> None:
        """Subtracts `amount` even if it is not available; a negative amount is a refund."""
        self._level = min(self._level - amount, self.per_minute)

    def status(self, kind: Literal["requests", "tokens"], now_s: float) -> RateLimitStatus:
        """The state at `now_s`; a debt counts as 0 remaining."""
        level, most = self._refilled(now_s), self.per_minute
        remaining = int(level) if level > 0 else 0
        return RateLimitStatus(kind, most, remaining, (most - level) / self._per_s)

    def _refilled(self, now_s: float) -> float:
        level = self._level + (now_s - self._updated_s) * self._per_s
        self._level = level if level < self.per_minute else float(self.per_minute)
        self._updated_s = now_s
        return self._level


class Reservation:
    """The tokens that one request reserves before admission, until its generations use them."""

    __slots__ = ("_begun", "_rate_limiter", "_tokens", "deferred_release")

    def __init__(self, rate_limiter: "RateLimiter") -> None:
        self._rate_limiter = rate_limiter
        self._tokens = 0
        self._begun = False
        # A key without limits has nothing to return
        self.deferred_release = DeferredRelease() if rate_limiter.is_limited else None

    def take(self, tokens: int) -> None:
        """Raises RateLimited if the key does not have that many tokens left."""
        self._rate_limiter.reserve(tokens)
        self._tokens += tokens
        self._begun = True

    @property
    def limits_tokens(self) -> bool:
        """Whether tokens have to be reserved and settled at all."""
        return self._rate_limiter.limits_tokens

    def borrow(self, tokens: int) -> int:
        """Reserve tokens that the caller must settle, in debt if the request has already begun.
        Raises RateLimited.
        """
        self._rate_limiter.reserve(tokens, allow_debt=self._begun)
        self._begun = True
        return tokens

    def use(self) -> int:
        """Hands over all reserved tokens to the caller, which must settle them; 0 if none."""
        tokens, self._tokens = self._tokens, 0
        return tokens

    def settle(self, *, reserved: int, used: int) -> None:
        """Settles one generation: charges an excess at once, and returns unused tokens when Triton
        has released the request.
        """
        settle = partial(self._rate_limiter.settle, reserved=reserved, used=used)
        if used < reserved:
            self.when_released(settle)
        else:
            settle()

    def when_released(self, give_back: Callable[[], None]) -> None:
        """Call `give_back` when Triton has released the request's work."""
        if self.deferred_release is None:
            give_back()
        else:
            self.deferred_release.when_released(give_back)

    def release(self) -> None:
        """Returns what no generation has used. Called at the end of the request."""
        if self._tokens:
            self._rate_limiter.settle(reserved=self.use(), used=0)


class RateLimiter:
    """One key's requests per minute, tokens per minute and concurrent requests.

    It outlives a reload of the keys file.
    """

    def __init__(
        self,
        name: str,
        limits: KeyLimits,
        clock: Clock = time.monotonic,
        shared: SharedRequestLimits | None = None,
    ) -> None:
        """`name` is the key's. With `shared`, other gateways count the key's requests too."""
        self._name = name
        self._clock = clock
        self._shared = shared
        self._shared_status: RateLimitStatus | None = None  # None: counted in this process
        self._max_concurrent: int | None = None
        self._requests: TokenBucket | None = None
        self._tokens: TokenBucket | None = None
        self.running = 0  # requests in progress
        self.set_limits(limits)

    def set_limits(self, limits: KeyLimits) -> None:
        """Change the limits; what has been used stays used."""
        self._max_concurrent = limits.max_concurrent_requests
        self._requests = self._resized(self._requests, limits.requests_per_minute)
        self._tokens = self._resized(self._tokens, limits.tokens_per_minute)

    def _resized(self, bucket: TokenBucket | None, per_minute: int | None) -> TokenBucket | None:
        if per_minute is None or bucket is None:
            return None if per_minute is None else TokenBucket(per_minute, self._clock())
        bucket.resize(per_minute)
        return bucket

    @property
    def is_limited(self) -> bool:
        """Whether the key has any limit."""
        return self._max_concurrent is not None or self.has_rate_limits

    @property
    def limits_tokens(self) -> bool:
        """Whether tokens have to be reserved and settled at all."""
        return self._tokens is not None

    @property
    def has_rate_limits(self) -> bool:
        """Whether `statuses` has any."""
        return self._requests is not None or self._tokens is not None

    async def begin(self) -> None:
        """Counts a request as running until `end`. Raises RateLimited."""
        if self._max_concurrent is not None and self.running >= self._max_concurrent:
            refusal = RateLimited(
                f"Key '{self._name}' reached its limit of {self._max_concurrent} concurrent "
                "requests. Retry when one finishes.",
                retry_after_s=_CONCURRENCY_RETRY_S,
            )
            refusal.rejection = "concurrency"
            raise refusal
        self.running += 1  # before the first await: others check the limit meanwhile
        if self._requests is None:
            return
        with ExitStack() as undo:
            undo.callback(self.end)
            await self._count_request(self._requests)
            undo.pop_all()

    async def _count_request(self, requests: TokenBucket) -> None:
        counted = None
        if self._shared is not None:
            counted = await self._shared.hit(self._name, requests.per_minute)
        if counted is None:
            self._shared_status = None
            self._check(requests, "requests", 1)
            requests.take(1)
            return
        allowed, self._shared_status = counted
        if not allowed:
            raise self._refusal("requests", requests.per_minute, 1, self._shared_status.reset_s)

    def end(self) -> None:
        """The request has ended, and Triton has released it."""
        self.running -= 1

    def reserve(self, tokens: int, *, allow_debt: bool = False) -> None:
        """Takes tokens before they are used. Raises RateLimited if they are not available.

        `allow_debt`: take them all the same, for the rest of a request that has already begun.
        More than one minute's worth needs a full bucket, and leaves a debt.
        """
        if self._tokens is None:
            return
        if not allow_debt:
            self._check(self._tokens, "tokens", tokens)
        self._tokens.take(tokens)

    def settle(self, *, reserved: int, used: int) -> None:
        """Returns unused tokens, or charges those used beyond the reservation."""
        if self._tokens is not None:
            self._tokens.take(used - reserved)

    def statuses(self) -> list[RateLimitStatus]:
        """One for each limit per minute that the key has."""
        now_s = self._clock()
        statuses = []
        if self._requests is not None:
            statuses.append(self._shared_status or self._requests.status("requests", now_s))
        if self._tokens is not None:
            statuses.append(self._tokens.status("tokens", now_s))
        return statuses

    def _check(self, bucket: TokenBucket, kind: str, amount: int) -> None:
        wait_s = bucket.wait_s(amount, self._clock())
        if wait_s > 0:
            raise self._refusal(kind, bucket.per_minute, amount, wait_s)

    def _refusal(self, kind: str, per_minute: int, amount: int, wait_s: float) -> RateLimited:
        return RateLimited(
            f"Rate limit reached for the key '{self._name}' on {kind} per minute: limit "
            f"{per_minute}, requested {amount}. Try again in {wait_s:.3f} s.",
            type=kind,
            retry_after_s=wait_s,
        )
