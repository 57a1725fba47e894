"""What a key has left of its limits. Keeps no time of its own: a clock is passed in."""

import time
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

from openai_frontend.auth.keys import KeyLimits
from openai_frontend.errors import RateLimited
from openai_frontend.lease import Lease

Clock = Callable[[], float]  # seconds that only go forward

# An answer that may fill its context is reserved as so many tokens: what most do not exceed.
UNSTATED_LENGTH = 1024

_STREAM_RETRY_S = 1.0


class RateLimitStatus(NamedTuple):
    """How a key stands with one of its limits."""

    kind: Literal["requests", "tokens"]
    limit: int  # per minute
    remaining: int
    reset_s: float  # until all is there again


class TokenBucket:
    """A minute's worth of something, which comes back evenly. It may owe: then it must wait."""

    __slots__ = ("_level", "_per_s", "_seen_s", "per_minute")

    def __init__(self, per_minute: int, now_s: float) -> None:
        self.per_minute = per_minute
        self._per_s = per_minute / 60
        self._level = float(per_minute)
        self._seen_s = now_s

    def resize(self, per_minute: int) -> None:
        """A new limit; what has been used stays used."""
        self._level += per_minute - self.per_minute
        self.per_minute = per_minute
        self._per_s = per_minute / 60

    def wait_s(self, amount: int, now_s: float) -> float:
        """Seconds until so much is there; of more than a minute's worth, until all is."""
        lacking = min(amount, self.per_minute) - self._refilled(now_s)
        return lacking / self._per_s if lacking > 0 else 0.0

    def take(self, amount: int) -> None:
        """Whether or not it is there; a negative amount gives back."""
        self._level = min(self._level - amount, self.per_minute)

    def standing(self, kind: Literal["requests", "tokens"], now_s: float) -> RateLimitStatus:
        """What clients are told of it."""
        level, most = self._refilled(now_s), self.per_minute
        remaining = int(level) if level > 0 else 0
        return RateLimitStatus(kind, most, remaining, (most - level) / self._per_s)

    def _refilled(self, now_s: float) -> float:
        level = self._level + (now_s - self._seen_s) * self._per_s
        self._level = level if level < self.per_minute else float(self.per_minute)
        self._seen_s = now_s
        return self._level


class Reservation:
    """The tokens that one request has reserved before it is admitted, until its work uses them."""

    __slots__ = ("_quota", "_tokens", "lease")

    def __init__(self, quota: "RateLimiter") -> None:
        self._quota = quota
        self._tokens = 0
        self.lease = Lease()

    def take(self, tokens: int) -> None:
        """Raises RateLimited where they are not there."""
        self._quota.reserve(tokens)
        self._tokens += tokens

    def use(self) -> int:
        """The work begins: who does it settles so many tokens; 0 where none are left."""
        tokens, self._tokens = self._tokens, 0
        return tokens

    def settle(self, *, reserved: int, used: int) -> None:
        """A work ends: what it used beyond is owed at once; what it did not use comes back once
        Triton has released the request.
        """
        settle = partial(self._quota.settle, reserved=reserved, used=used)
        if used < reserved:
            self.lease.when_released(settle)
        else:
            settle()

    def release(self) -> None:
        """The request is over: what no work has used comes back."""
        self._quota.settle(reserved=self.use(), used=0)


class RateLimiter:
    """One key's requests, tokens and places. It outlives a reload of the keys file."""

    def __init__(self, name: str, limits: KeyLimits, clock: Clock = time.monotonic) -> None:
        """`name` is the key's, for messages."""
        self._name = name
        self._clock = clock
        self._max_concurrent: int | None = None
        self._requests: TokenBucket | None = None
        self._tokens: TokenBucket | None = None
        self.running = 0  # requests at work
        self.limit(limits)

    def limit(self, limits: KeyLimits) -> None:
        """New limits; what has been used stays used."""
        self._max_concurrent = limits.max_concurrent_requests
        self._requests = self._resized(self._requests, limits.requests_per_minute)
        self._tokens = self._resized(self._tokens, limits.tokens_per_minute)

    def _resized(self, bucket: TokenBucket | None, per_minute: int | None) -> TokenBucket | None:
        if per_minute is None or bucket is None:
            return None if per_minute is None else TokenBucket(per_minute, self._clock())
        bucket.resize(per_minute)
        return bucket

    @property
    def counts_tokens(self) -> bool:
        """Whether anybody needs to tell it of tokens."""
        return self._tokens is not None

    @property
    def per_minute(self) -> bool:
        """Whether it has limits of which `standings` tells."""
        return self._requests is not None or self._tokens is not None

    def begin(self) -> None:
        """One more request at work, until `end`. Raises RateLimited where there is no place."""
        if self._max_concurrent is not None and self.running >= self._max_concurrent:
            refusal = RateLimited(
                f"The key '{self._name}' has {self.running} requests at work, "
                f"and may have {self._max_concurrent}. Try again when one of them has ended.",
                retry_after_s=_STREAM_RETRY_S,
            )
            refusal.rejection = "concurrency"
            raise refusal
        if self._requests is not None:
            self._check(self._requests, "requests", 1)
            self._requests.take(1)
        self.running += 1

    def end(self) -> None:
        """A request that has begun is over, here and in Triton."""
        self.running -= 1

    def reserve(self, tokens: int, *, must: bool = False) -> None:
        """Takes tokens before they are used. Raises RateLimited where they are not there, unless
        they `must` be: what belongs to a request that has begun is owed.

        More than a minute's worth needs a full minute's, and the rest is owed.
        """
        if self._tokens is None:
            return
        if not must:
            self._check(self._tokens, "tokens", tokens)
        self._tokens.take(tokens)

    def settle(self, *, reserved: int, used: int) -> None:
        """What was not used comes back; what was used beyond is owed."""
        if self._tokens is not None:
            self._tokens.take(used - reserved)

    def standings(self) -> list[RateLimitStatus]:
        """Of each limit per minute that the key has."""
        now_s = self._clock()
        told = []
        if self._requests is not None:
            told.append(self._requests.standing("requests", now_s))
        if self._tokens is not None:
            told.append(self._tokens.standing("tokens", now_s))
        return told

    def _check(self, bucket: TokenBucket, kind: str, amount: int) -> None:
        wait_s = bucket.wait_s(amount, self._clock())
        if wait_s > 0:
            raise RateLimited(
                f"Rate limit reached for the key '{self._name}' on {kind} per minute: limit "
                f"{bucket.per_minute}, requested {amount}. Try again in {wait_s:.3f} s.",
                type=kind,
                retry_after_s=wait_s,
            )
