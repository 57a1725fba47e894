"""API keys as the server stores them, and the scopes that a key can have."""

import hashlib
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Literal, get_args

# inference: generate, embed, score, tokenize. models: list models, read the API's documentation.
# metrics: monitor the server. admin: load and unload models.
KeyScope = Literal["inference", "models", "metrics", "admin"]
SCOPES: tuple[KeyScope, ...] = get_args(KeyScope)

# What a route is for. `public` routes never need a key; `health` and `docs` can be made public.
RouteScope = Literal["inference", "models", "metrics", "admin", "health", "docs", "public"]

REQUIRED_SCOPE: dict[RouteScope, KeyScope] = {
    "inference": "inference",
    "models": "models",
    "metrics": "metrics",
    "admin": "admin",
    "health": "metrics",
    "docs": "models",
}

# The version suffix of a model name in a request
_VERSION = re.compile(r"@\d+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """Limits of one key; None: only the server's own limits apply."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent_requests: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An API key or a token's subject, with its permissions. The secret itself is never stored."""

    name: str  # for people: in the log, in lists
    digest: str  # SHA-256 of the secret, 64 hexadecimal digits
    scopes: frozenset[KeyScope]
    models: Sequence[str] | None = None  # names or patterns (`org/*`); None: every model
    limits: KeyLimits = KeyLimits()
    priority: int = 0  # best priority of a request with this key; lower numbers run first
    isolate_prefix_cache: bool = False  # do not share the engine's prefix cache with other keys
    created: datetime | None = None
    expires: datetime | None = None

    def is_expired(self, now_s: float | None = None) -> bool:
        """`now_s` is Unix time."""
        if self.expires is None:
            return False
        return self.expires.timestamp() <= (time.time() if now_s is None else now_s)

    def allows(self, model: str) -> bool:
        """Whether a request may name this model.

        A pattern for a model includes its versions (`base@2`), but not its adapters
        (`base:adapter`) and aliases, which are names of their own.
        """
        if self.models is None:
            return True
        names = (model, _VERSION.sub("", model))
        return any(fnmatchcase(name, pattern) for pattern in self.models for name in names)


def new_secret() -> str:
    """A new API key: 256 random bits, in the form of OpenAI's keys."""
    return f"sk-{secrets.token_urlsafe(32)}"


def digest_of(secret: bytes) -> str:
    """SHA-256 is enough: a secret of 128 random bits or more cannot be guessed from its digest."""
    return hashlib.sha256(secret).hexdigest()
