"""Cache salts: an engine lets requests share cached prompts, images and audio only if their salts
are equal.
"""

import hmac
import secrets
from functools import lru_cache

from schemas.sampling import OWNER_CHARACTERS

# The owners of salts: clients in general, or one key. Neither can write the other's prefix.
_SHARED, _ONE_KEY = "c", "k"
_MAC_CHARACTERS = OWNER_CHARACTERS - len("k//")


class CacheSalts:
    """Makes the salts that engines get of those that clients ask for.

    Each salt begins with its owner, authenticated by a secret of the deployment. So a client can
    neither choose nor compute the salt of a key that isolates its caches.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        """Servers with the same secret make the same salts; None means a random secret."""
        self._secret = secret or secrets.token_bytes(32)
        self._owner = lru_cache(maxsize=1024)(self._authenticated)  # 5 us with OpenSSL 3
        self._shared = self._owner(_SHARED, "")

    def salt(self, requested: str | None, owner: str | None = None) -> str | None:
        """`owner` is the digest of a key that shares its caches with no other; None for all other
        clients, whose requests without a salt have None.
        """
        if owner is not None:
            prefix = self._owner(_ONE_KEY, owner)
            return prefix if requested is None else f"{prefix}/{requested}"
        return None if requested is None else f"{self._shared}/{requested}"

    def _authenticated(self, kind: str, owner: str) -> str:
        mac = hmac.digest(self._secret, f"{kind}/{owner}".encode(), "sha256").hex()
        return f"{kind}/{mac[:_MAC_CHARACTERS]}"


def secret_from(text: str) -> bytes:
    """A secret for salts from one with another purpose, which it does not reveal."""
    return hmac.digest(text.encode(), b"cache salts", "sha256")
