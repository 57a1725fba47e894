"""Looks up the principal of a request by its API key or token."""

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from openai_frontend.auth.keys import Key, KeyScope, digest_of
from openai_frontend.auth.rate_limit import RateLimiter
from openai_frontend.errors import NotAuthenticated, NotPermitted

# Longer secrets are not even hashed: a header can have up to 64 KiB.
MAX_SECRET_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sends a request: a valid key, and the state of its limits."""

    key: Key
    rate_limiter: RateLimiter

    def require(self, scope: KeyScope) -> None:
        """Raises NotPermitted if the key does not have the scope."""
        if scope not in self.key.scopes:
            message = f"The key '{self.key.name}' does not have the scope '{scope}'."
            raise NotPermitted(message)

    def priority(self, requested: int) -> int:
        """The priority of a request: its own, but no better than the key's; 0 means the key's."""
        return max(requested, self.key.priority) if requested else self.key.priority

    def cache_salt(self, requested: str | None) -> str | None:
        """Requests share the engine's prefix cache only with others of the same salt; None: with
        all that have none.
        """
        if not self.key.isolate_prefix_cache:
            return requested
        return f"{self.key.digest[:16]}/{requested or ''}"


class TokenVerifier(Protocol):
    """Authenticates by tokens that another server signs."""

    def verify(self, token: bytes, digest: str) -> Principal:
        """Raises NotAuthenticated. `digest` is the token's."""


class ApiKeys:
    """The keys in force. `replace` swaps all of them at once."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self.token_verifier: TokenVerifier | None = None
        self._principals: Mapping[str, Principal] = {}  # by digest
        self._rate_limiters: dict[str, RateLimiter] = {}  # by name
        self.replace(keys)

    def replace(self, keys: Iterable[Key]) -> None:
        """A key whose name was known keeps its rate limiter, so what it used stays used."""
        principals: dict[str, Principal] = {}
        rate_limiters: dict[str, RateLimiter] = {}
        for key in keys:
            rate_limiter = self._rate_limiters.get(key.name)
            if rate_limiter is None:
                rate_limiter = RateLimiter(key.name, key.limits)
            else:
                rate_limiter.set_limits(key.limits)
            rate_limiters[key.name] = rate_limiter
            principals[key.digest] = Principal(key, rate_limiter)
        self._principals, self._rate_limiters = principals, rate_limiters

    def __len__(self) -> int:
        return len(self._principals)

    def authenticate(self, secret: bytes) -> Principal:
        """Raises NotAuthenticated; unknown and expired keys get the same message.

        The lookup uses a digest, whose bytes a client cannot choose, so its timing reveals nothing
        about the stored keys. The comparison takes constant time.
        """
        digest = digest_of(secret) if len(secret) <= MAX_SECRET_BYTES else ""
        principal = self._principals.get(digest)
        if principal is None and self.token_verifier is not None and digest and _is_jwt(secret):
            return self.token_verifier.verify(secret, digest)
        known = principal.key.digest if principal is not None else ""
        if (
            not hmac.compare_digest(known, digest)
            or principal is None
            or principal.key.is_expired()
        ):
            raise NotAuthenticated("Incorrect API key provided.")
        return principal


def _is_jwt(secret: bytes) -> bool:
    """Three parts, of which the first begins like a JSON object in base64."""
    return secret.startswith(b"ey") and secret.count(b".") == 2
