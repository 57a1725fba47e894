"""SageMaker's stateful sessions: ids that clients open and close, and that expire.

A session holds no data. SageMaker sends its requests to the instance that opened it.
"""

import time
import uuid
from collections.abc import Callable, Iterable

from openai_frontend.errors import InvalidRequest, RateLimited

MAX_SESSIONS = 65_536
MAX_SESSIONS_OF_KEY = 4096

_LONGEST_ID_IN_MESSAGES = 64


class StatefulSessions:
    """The open sessions of each tenant; a tenant is the digest of a key, or "" without keys."""

    def __init__(
        self,
        lifetime_s: int,
        *,
        max_sessions: int = MAX_SESSIONS,
        max_of_key: int = MAX_SESSIONS_OF_KEY,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lifetime_s = lifetime_s
        self._max_sessions = max_sessions
        self._max_of_key = max_of_key
        self._now_s = now_s
        self._ends: dict[str, dict[str, float]] = {}  # tenant -> id -> end, the next one first

    def open(self, tenant: str) -> str:
        """Return the id of a new session. Raises RateLimited at the limit."""
        self._forget_expired(tenant)
        if tenant and len(self._ends.get(tenant, ())) >= self._max_of_key:
            raise self._full(f"The key has {self._max_of_key} open sessions", [tenant])
        if self._count() >= self._max_sessions:
            for each in list(self._ends):
                self._forget_expired(each)
        if self._count() >= self._max_sessions:
            raise self._full(f"The server has {self._max_sessions} open sessions", self._ends)
        id = str(uuid.uuid4())
        self._ends.setdefault(tenant, {})[id] = self._now_s() + self.lifetime_s
        return id

    def require(self, id: str, tenant: str) -> None:
        """Raises InvalidRequest if the session is not open, or another tenant's."""
        self._forget_expired(tenant)
        if id not in self._ends.get(tenant, ()):
            shown = id[:_LONGEST_ID_IN_MESSAGES]
            raise InvalidRequest(f"session not found: '{shown}' is unknown, closed or expired")

    def close(self, id: str, tenant: str) -> None:
        """Raises InvalidRequest as `require` does."""
        self.require(id, tenant)
        del self._ends[tenant][id]
        self._forget_expired(tenant)

    def _count(self) -> int:
        return sum(map(len, self._ends.values()))

    def _forget_expired(self, tenant: str) -> None:
        """All sessions have the same lifetime, so those that were opened first end first."""
        ends, now_s = self._ends.get(tenant, {}), self._now_s()
        while ends and ends[first := next(iter(ends))] <= now_s:
            del ends[first]
        if not ends:
            self._ends.pop(tenant, None)

    def _full(self, state: str, tenants: Iterable[str]) -> RateLimited:
        first_s = min(next(iter(self._ends[tenant].values())) for tenant in tenants)
        message = f"{state}. Close one, or retry when one has expired."
        return RateLimited(message, retry_after_s=max(1.0, first_s - self._now_s()))
