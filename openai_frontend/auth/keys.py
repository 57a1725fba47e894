"""API keys as they are kept: by their digest, for a key itself is shown once and never stored."""

import hashlib
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase

from openai_frontend.auth.scopes import KeyScope

# A model's version in a request's name for it
_VERSION = re.compile(r"@\d+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """How much a key may ask for; None: as much as the server has."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent_requests: int | None = None  # requests at work at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of the keys file."""

    name: str  # for people: in the log, in lists
    digest: str  # SHA-256 of the key, as 64 hexadecimal digits
    scopes: frozenset[KeyScope]
    models: Sequence[str] | None = None  # names or patterns (`org/*`); None: every model
    limits: KeyLimits = KeyLimits()
    priority: int = 0  # lower numbers first; no request with this key goes before it
    isolate_prefix_cache: bool = False  # shares the engine's prefix cache with no other key
    created: datetime | None = None
    expires: datetime | None = None

    def is_expired(self, now_s: float | None = None) -> bool:
        """Whether its time is over; `now_s` is Unix time."""
        if self.expires is None:
            return False
        return self.expires.timestamp() <= (time.time() if now_s is None else now_s)

    def allows(self, model: str) -> bool:
        """Whether a request may name this model. A model's versions are the model; its adapters
        (`base:adapter`) and aliases are names of their own.
        """
        if self.models is None:
            return True
        names = (model, _VERSION.sub("", model))
        return any(fnmatchcase(name, pattern) for pattern in self.models for name in names)


def new_secret() -> str:
    """A key for a client: 256 random bits, in the form that OpenAI's keys have."""
    return f"sk-{secrets.token_urlsafe(32)}"


def digest_of(secret: bytes) -> str:
    """What is stored of a key. Of 128 random bits and more, nobody finds the key by its digest."""
    return hashlib.sha256(secret).hexdigest()
