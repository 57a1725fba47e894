"""Callers by JSON Web Tokens that an identity provider signs. Fetches nothing; needs PyJWT."""

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import jwt
import orjson
from pydantic import ValidationError

from openai_frontend.auth.keys import Key, digest_of
from openai_frontend.auth.keys_file import KeyPolicy
from openai_frontend.auth.principal import Principal
from openai_frontend.auth.rate_limit import RateLimiter
from openai_frontend.auth.scopes import SCOPES
from openai_frontend.errors import NotAuthenticated

# Signatures by a key that only the provider has: no shared secret, and never none.
ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip

CLAIM = "openai_frontend"  # the models and limits of a caller, as the keys file has them

LEEWAY_S = 30  # between the provider's clock and ours
_REMEMBERED = 10_000  # tokens, and subjects: what has not been seen for longest is forgotten

_SHOWABLE = re.compile(r"[\x21-\x7e]{1,128}")
_INVALID = "Incorrect API key provided."


class InvalidJWKS(Exception):
    """A provider's keys cannot be read; the message is one line."""


class JWTVerifier:
    """Checks a token once, and remembers it until it expires: a signature costs 50 us."""

    def __init__(
        self, *, issuer: str, audience: str, clock: Callable[[], float] = time.time
    ) -> None:
        """`clock` gives Unix time."""
        self._issuer = issuer
        self._audience = audience
        self._clock = clock
        self._keys: Mapping[str | None, jwt.PyJWK] = {}
        self._known: OrderedDict[str, tuple[Principal, float]] = OrderedDict()
        self._quotas: OrderedDict[str, RateLimiter] = OrderedDict()
        self.on_unknown_key: Callable[[], None] = lambda: None  # the provider may have a new one

    def use(self, jwks: bytes) -> int:
        """The provider's keys from now on; tokens are checked anew. Returns how many can be used.

        Raises InvalidJWKS.
        """
        try:
            given = orjson.loads(jwks)["keys"]
            keys = {each.key_id: each for each in map(_key, given) if each is not None}
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
            raise InvalidJWKS("it is no JWKS") from None
        if not keys:
            raise InvalidJWKS(f"it has no key for one of {', '.join(ALGORITHMS)}")
        self._keys = keys
        self._known.clear()
        return len(keys)

    def find(self, token: bytes, digest: str) -> Principal:
        """Raises NotAuthenticated. `digest` is the token's."""
        known = self._known.get(digest)
        if known is not None and self._clock() < known[1]:
            caller = known[0]
            _remember(self._known, digest, known)
            _remember(self._quotas, caller.key.digest, caller.quota)
            return caller
        claims = self._claims(token)
        caller = self._caller(claims)
        _remember(self._known, digest, (caller, int(claims["exp"]) + LEEWAY_S))
        return caller

    def _claims(self, token: bytes) -> dict[str, Any]:
        """Of a token that the provider has signed for us, and that is in force."""
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

    def _caller(self, claims: Mapping[str, Any]) -> Principal:
        subject = claims["sub"]
        digest = digest_of(subject.encode("utf-8", "surrogatepass"))
        try:
            grants = KeyPolicy.model_validate(claims.get(CLAIM, {}))
        except ValidationError:
            message = f"The claim '{CLAIM}' of the token says what it may not."
            raise NotAuthenticated(message) from None
        key = Key(
            name=f"jwt:{subject if _SHOWABLE.fullmatch(subject) else digest[:16]}",
            digest=digest,
            scopes=frozenset(scope for scope in SCOPES if scope in _scopes(claims)),
            models=grants.models,
            limits=grants.limits(),
            priority=grants.priority,
            isolate_prefix_cache=grants.isolate_prefix_cache,
        )
        return Principal(key, self._quota(key))

    def _quota(self, key: Key) -> RateLimiter:
        """One for each subject, whichever of his tokens he sends."""
        quota = self._quotas.get(key.digest)
        if quota is None:
            quota = RateLimiter(key.name, key.limits)
        quota.limit(key.limits)
        _remember(self._quotas, key.digest, quota)
        return quota


def _key(given: Any) -> jwt.PyJWK | None:
    """None for what signs nothing, or in no way that is taken here."""
    if given.get("use", "sig") != "sig":
        return None
    try:
        key = jwt.PyJWK(given)
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    return key if key.algorithm_name in ALGORITHMS else None


def _scopes(claims: Mapping[str, Any]) -> list[str]:
    """`scope` is a text with spaces (RFC 8693); some providers have a list, or call it `scp`."""
    given = claims.get("scope", claims.get("scp", ""))
    if isinstance(given, str):
        return given.split()
    return [each for each in given if isinstance(each, str)] if isinstance(given, list) else []


def _remember(known: OrderedDict[str, Any], name: str, value: object) -> None:
    known[name] = value
    known.move_to_end(name)
    if len(known) > _REMEMBERED:
        known.popitem(last=False)
