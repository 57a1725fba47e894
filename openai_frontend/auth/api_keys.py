"""The keys in force: from what a client sent to a caller. Replaced whole, never edited."""

import hmac
from collections.abc import Iterable, Mapping
from typing import Protocol

from openai_frontend.auth.keys import Key, digest_of
from openai_frontend.auth.principal import Principal
from openai_frontend.auth.rate_limit import RateLimiter
from openai_frontend.errors import NotAuthenticated

# Longer ones are not even hashed: a client's longest header would be 64 KiB.
LONGEST_SECRET = 16 * 1024


class TokenVerifier(Protocol):
    """Knows callers by tokens that somebody else signs."""

    def find(self, token: bytes, digest: str) -> Principal:
        """Raises NotAuthenticated."""


class ApiKeys:
    """Finds the caller by the digest of his key."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self.tokens: TokenVerifier | None = None
        self._callers: Mapping[str, Principal] = {}
        self._quotas: dict[str, RateLimiter] = {}
        self.replace(keys)

    def replace(self, keys: Iterable[Key]) -> None:
        """Other keys from now on. What a key has used, by its name, stays used."""
        callers: dict[str, Principal] = {}
        quotas: dict[str, RateLimiter] = {}
        for key in keys:
            quota = self._quotas.get(key.name)
            if quota is None:
                quota = RateLimiter(key.name, key.limits)
            else:
                quota.limit(key.limits)
            quotas[key.name] = quota
            callers[key.digest] = Principal(key, quota)
        self._callers, self._quotas = callers, quotas

    def __len__(self) -> int:
        return len(self._callers)

    def find(self, secret: bytes) -> Principal:
        """Raises NotAuthenticated for a key that is unknown or has expired; never says which.

        The table is asked with a digest, whose bytes nobody can choose: how long it takes tells
        nothing of the keys in it. The comparison takes the same time wherever two digests differ.
        """
        digest = digest_of(secret) if len(secret) <= LONGEST_SECRET else ""
        caller = self._callers.get(digest)
        if caller is None and self.tokens is not None and digest and _may_be_token(secret):
            return self.tokens.find(secret, digest)
        known = caller.key.digest if caller is not None else ""
        if not hmac.compare_digest(known, digest) or caller is None or caller.key.is_expired():
            raise NotAuthenticated("Incorrect API key provided.")
        return caller


def _may_be_token(secret: bytes) -> bool:
    """A JSON object in base64, and two parts behind it."""
    return secret.startswith(b"ey") and secret.count(b".") == 2
