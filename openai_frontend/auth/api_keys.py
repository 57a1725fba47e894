"""API keys as the server stores them, their scopes, and the lookup of a request's key or token."""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Literal, Protocol, get_args

from openai_frontend.auth.rate_limit import UNLIMITED, KeyLimits, RateLimiter, SharedRequestLimits
from openai_frontend.errors import NotAuthenticated, NotPermitted

# inference: generate, embed, score, tokenize. messages, responses: the parts of it that are
# Anthropic's Messages API and OpenAI's Responses API. models: list models, read the API's
# documentation. metrics: monitor the server. admin: load and unload models. transfer: compute
# prompts for decode servers.
KeyScope = Literal["inference", "messages", "responses", "models", "metrics", "admin", "transfer"]
SCOPES: tuple[KeyScope, ...] = get_args(KeyScope)

# The purpose of a route. `public` routes never need a key; `health` and `docs` can be made public.
RouteScope = Literal[
    "inference", "messages", "responses", "models", "metrics", "admin", "transfer", "health",
    "docs", "public",
]  # fmt: skip

# Any of a key's scopes opens the route
OPENED_BY: dict[RouteScope, tuple[KeyScope, ...]] = {
    "inference": ("inference",),
    "messages": ("inference", "messages"),
    "responses": ("inference", "responses"),
    "models": ("models",),
    "metrics": ("metrics",),
    "admin": ("admin",),
    "transfer": ("transfer",),
    "health": ("metrics",),
    "docs": ("models",),
}

# Their requests count towards the limits of a key
LIMITED: frozenset[RouteScope | Literal["nowhere"] | None] = frozenset(
    route for route, scopes in OPENED_BY.items() if "inference" in scopes
)

# Longer secrets are not even hashed: a header can have up to 64 KiB.
MAX_SECRET_BYTES = 16 * 1024

# The version suffix of a model name in a request
_VERSION = re.compile(r"@\d+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An API key or a token's subject, with its permissions. The secret itself is never stored."""

    name: str  # for people: in the log, in lists
    digest: str  # SHA-256 of the secret, 64 hexadecimal digits
    scopes: frozenset[KeyScope]
    models: Sequence[str] | None = None  # names or patterns (`org/*`); None: every model
    limits: KeyLimits = UNLIMITED
    priority: int = 0  # best priority of a request with this key; lower numbers run first
    isolate_prefix_cache: bool = False  # do not share the engine's caches with other keys
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


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request: a valid key, and the state of its limits."""

    key: Key
    rate_limiter: RateLimiter

    def may_open(self, route: RouteScope) -> bool:
        """Whether one of the key's scopes opens the route."""
        return not self.key.scopes.isdisjoint(OPENED_BY.get(route, ()))

    def require(self, route: RouteScope) -> None:
        """Raises NotPermitted if none of the key's scopes opens the route."""
        if not self.may_open(route):
            scopes = " or ".join(f"'{scope}'" for scope in OPENED_BY.get(route, ()))
            message = f"The key '{self.key.name}' does not have the scope {scopes}."
            raise NotPermitted(message)

    def priority(self, requested: int) -> int:
        """The priority of a request: its own, but no better than the key's; 0 means the key's."""
        return max(requested, self.key.priority) if requested else self.key.priority

    @property
    def cache_owner(self) -> str | None:
        """Owner of the caches of this caller's requests; None if it shares them with others."""
        return self.key.digest if self.key.isolate_prefix_cache else None


class TokenVerifier(Protocol):
    """Authenticates by tokens that another server signs."""

    def verify(self, token: bytes, digest: str) -> Principal:
        """Raises NotAuthenticated. `digest` is the token's."""


class ApiKeys:
    """The keys in force. `replace` swaps all of them at once."""

    def __init__(self, keys: Iterable[Key], shared: SharedRequestLimits | None = None) -> None:
        """`shared` counts the keys' requests together with other gateways."""
        self._shared = shared
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
                rate_limiter = RateLimiter(key.name, key.limits, shared=self._shared)
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
