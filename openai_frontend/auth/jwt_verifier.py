"""Authenticates by JSON Web Tokens (JWT) that an identity provider signs. Needs PyJWT; no I/O."""

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import jwt
import orjson
from pydantic import ValidationError

from openai_frontend.auth.api_keys import SCOPES, Key, Principal, digest_of
from openai_frontend.auth.keys_file import KeyPolicy
from openai_frontend.auth.rate_limit import RateLimiter, SharedRequestLimits
from openai_frontend.errors import NotAuthenticated

# Asymmetric signatures only: no shared secrets, and never `none`.
ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip

CLAIM = "openai_frontend"  # models and limits, with the same fields as in the keys file

LEEWAY_S = 30  # for the difference between the provider's clock and ours
_CACHE_SIZE = 10_000  # of tokens and of subjects; evicts the least recently used

_SHOWABLE = re.compile(r"[\x21-\x7e]{1,128}")
_INVALID = "Incorrect API key provided."


class InvalidJWKS(Exception):
    """The message is one line."""


class JWTVerifier:
    """Verifies a token once and caches it until it expires: a signature takes 50 us."""

    def __init__(
        self,
        *,
        issuer: str,
        audience: str,
        clock: Callable[[], float] = time.time,
        shared: SharedRequestLimits | None = None,
    ) -> None:
        """`clock` gives Unix time. `shared` counts requests together with other gateways."""
        self._shared = shared
        self._issuer = issuer
        self._audience = audience
        self._clock = clock
        self._keys: Mapping[str | None, jwt.PyJWK] = {}
        self._verified: OrderedDict[str, tuple[Principal, float]] = OrderedDict()
        self._rate_limiters: OrderedDict[str, RateLimiter] = OrderedDict()
        self.on_unknown_key: Callable[[], None] = lambda: (
            None
        )  # the provider may have rotated its keys

    def set_keys(self, jwks: bytes) -> int:
        """Replaces the signing keys and drops the cache. Returns the number of usable keys.

        Raises InvalidJWKS.
        """
        try:
            entries = orjson.loads(jwks)["keys"]
            keys = {each.key_id: each for each in map(_signing_key, entries) if each is not None}
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
            raise InvalidJWKS("invalid JWKS") from None
        if not keys:
            raise InvalidJWKS(f"no key for any of {', '.join(ALGORITHMS)}")
        self._keys = keys
        self._verified.clear()
        return len(keys)

    def verify(self, token: bytes, digest: str) -> Principal:
        """Raises NotAuthenticated. `digest` is the token's."""
        cached = self._verified.get(digest)
        if cached is not None and self._clock() < cached[1]:
            principal = cached[0]
            _cache(self._verified, digest, cached)
            _cache(self._rate_limiters, principal.key.digest, principal.rate_limiter)
            return principal
        claims = self._claims(token)
        principal = self._principal(claims)
        _cache(self._verified, digest, (principal, int(claims["exp"]) + LEEWAY_S))
        return principal

    def _claims(self, token: bytes) -> dict[str, Any]:
        """Checks the signature, issuer, audience and expiry, and returns the claims."""
        try:
            kid = jwt.get_unverified_header(token).get("kid")
            key = self._keys.get(kid)
            if key is None:
                self.on_unknown_key()
                raise NotAuthenticated(_INVALID)
            return jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                issuer=self._issuer,
                audience=self._audience,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.ExpiredSignatureError:
            raise NotAuthenticated("The token has expired.") from None
        except (jwt.PyJWTError, ArithmeticError, ValueError, TypeError, RecursionError):
            raise NotAuthenticated(_INVALID) from None

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        subject = claims["sub"]
        digest = digest_of(subject.encode("utf-8", "surrogatepass"))
        try:
            policy = KeyPolicy.model_validate(claims.get(CLAIM, {}))
        except ValidationError:
            raise NotAuthenticated(f"Invalid '{CLAIM}' claim in the token.") from None
        key = Key(
            name=f"jwt:{subject if _SHOWABLE.fullmatch(subject) else digest[:16]}",
            digest=digest,
            scopes=frozenset(scope for scope in SCOPES if scope in _scopes(claims)),
            models=policy.models,
            limits=policy.limits(),
            priority=policy.priority,
            isolate_prefix_cache=policy.isolate_prefix_cache,
        )
        return Principal(key, self._rate_limiter(key))

    def _rate_limiter(self, key: Key) -> RateLimiter:
        """All tokens of one subject share a rate limiter."""
        rate_limiter = self._rate_limiters.get(key.digest)
        if rate_limiter is None:
            rate_limiter = RateLimiter(key.name, key.limits, shared=self._shared)
        rate_limiter.set_limits(key.limits)
        _cache(self._rate_limiters, key.digest, rate_limiter)
        return rate_limiter


def _signing_key(entry: Any) -> jwt.PyJWK | None:
    """None for encryption keys and algorithms that are not supported."""
    if entry.get("use", "sig") != "sig":
        return None
    try:
        key = jwt.PyJWK(entry)
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    return key if key.algorithm_name in ALGORITHMS else None


def _scopes(claims: Mapping[str, Any]) -> list[str]:
    """`scope` is a string separated by spaces (RFC 8693); some providers send a list, or `scp`."""
    scopes = claims.get("scope", claims.get("scp", ""))
    if isinstance(scopes, str):
        return scopes.split()
    return [each for each in scopes if isinstance(each, str)] if isinstance(scopes, list) else []


def _cache(cache: OrderedDict[str, Any], name: str, value: object) -> None:
    cache[name] = value
    cache.move_to_end(name)
    if len(cache) > _CACHE_SIZE:
        cache.popitem(last=False)
