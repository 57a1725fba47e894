"""Requests per minute of keys, counted in Redis for all gateways that use it. Needs the extra
`redis`.
"""

import asyncio
import logging
import time

from limits import RateLimitItemPerMinute
from limits.aio.storage import RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from limits.errors import ConfigurationError, StorageError
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from openai_frontend.auth.rate_limit import RateLimitStatus

logger = logging.getLogger(__name__)

SCHEMES = ("redis://", "rediss://", "redis+unix://", "redis+cluster://", "redis+sentinel://")
PREFIX = "openai-frontend"

# A request waits this long for Redis, and the next ones do not ask it for a while after that.
ANSWER_WITHIN_S = 0.25
ASK_AGAIN_AFTER_S = 1.0
WINDOW_S = 60.0


class RedisRequestLimits:
    """A sliding window of a minute for each key, approximated by two counters.

    If Redis does not answer, `hit` returns None: the gateway then counts by itself.
    """

    def __init__(self, url: str) -> None:
        """Raises ValueError if the URL cannot be used. Does not connect."""
        if not url.startswith(SCHEMES):
            raise ValueError(f"must begin with one of {', '.join(SCHEMES)}")
        try:
            storage = RedisStorage(
                f"async+{url}",
                wrap_exceptions=True,
                implementation="redispy",
                key_prefix=PREFIX,
                socket_timeout=ANSWER_WITHIN_S,
                socket_connect_timeout=ANSWER_WITHIN_S,
                retry=Retry(NoBackoff(), 0),  # type: ignore[arg-type]  # passed on to redis-py
            )
        except (ConfigurationError, RedisError, ValueError) as error:
            raise ValueError(str(error)) from None
        self._windows = SlidingWindowCounterRateLimiter(storage)
        self._silent_until_s = 0.0
        self.failures = 0  # requests that were counted in this process instead

    async def hit(self, name: str, per_minute: int) -> tuple[bool, RateLimitStatus] | None:
        """See `SharedRequestLimits`. `reset_s` is the time until one more request is possible."""
        if time.monotonic() < self._silent_until_s:
            self.failures += 1
            return None
        limit = RateLimitItemPerMinute(per_minute)
        try:
            async with asyncio.timeout(2 * ANSWER_WITHIN_S):
                allowed = await self._windows.hit(limit, name)
                stats = await self._windows.get_window_stats(limit, name)
        except (StorageError, TimeoutError) as error:
            self._pause(error)
            return None
        if self._silent_until_s:
            self._silent_until_s = 0.0
            logger.info("rate_limit_storage answers again")
        reset_s = min(max(stats.reset_time - time.time(), 0.0), WINDOW_S)
        return allowed, RateLimitStatus("requests", per_minute, stats.remaining, reset_s)

    def _pause(self, error: Exception) -> None:
        if not self._silent_until_s:
            logger.warning(
                "rate_limit_storage does not answer (%s); counting requests in this process",
                error or type(error).__name__,
            )
        self.failures += 1
        self._silent_until_s = time.monotonic() + ASK_AGAIN_AFTER_S
