"""Who asks: what the layers below HTTP are told of a key."""

from dataclasses import dataclass

from openai_frontend.auth.keys import Key
from openai_frontend.auth.rate_limit import RateLimiter
from openai_frontend.errors import NotPermitted


@dataclass(frozen=True, slots=True)
class Principal:
    """A key that is in force, and what it has left."""

    key: Key
    quota: RateLimiter

    def check(self, scope: str) -> None:
        """Raises where the key is not for this."""
        if scope not in self.key.scopes:
            message = f"The key '{self.key.name}' does not have the scope '{scope}'."
            raise NotPermitted(message)

    def priority(self, asked: int) -> int:
        """A request may go behind the key's place, not before it; 0, or no word, is that place."""
        return max(asked, self.key.priority) if asked else self.key.priority

    def cache_salt(self, asked: str | None) -> str | None:
        """Which requests may share the engine's prefix cache with this one; None: all."""
        if not self.key.isolate_prefix_cache:
            return asked
        return f"{self.key.digest[:16]}/{asked or ''}"
