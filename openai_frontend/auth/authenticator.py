"""Builds authentication from the settings: static keys, a keys file, JSON Web Tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from openai_frontend.auth.api_keys import SCOPES, ApiKeys, Key
from openai_frontend.auth.keys_file import InvalidKeysFile, KeysFileWatcher
from openai_frontend.auth.rate_limit import SharedRequestLimits
from openai_frontend.runtime.heartbeat import Heartbeat

if TYPE_CHECKING:
    from openai_frontend.auth.redis_limits import RedisRequestLimits


class AuthConfigError(Exception):
    """The message is one line that begins with the name of a setting."""


class Watcher(Protocol):
    """Follows a source of keys that changes while the server runs."""

    async def watch(self, heartbeat: Heartbeat) -> None:
        """Runs until it is cancelled, at the pace of the process's other checks."""


@dataclass(frozen=True, slots=True)
class Authenticator:
    """The API keys, and the watchers that keep them up to date."""

    api_keys: ApiKeys
    watchers: Sequence[Watcher]
    shared_limits: "RedisRequestLimits | None" = None


def build_authenticator(
    *,
    keys_file: Path | None,
    api_keys: Sequence[str] = (),
    jwks: str | None,
    jwt_issuer: str | None,
    jwt_audience: str | None,
    rate_limit_storage: str | None = None,
) -> Authenticator | None:
    """None if the settings configure no keys: then every request is accepted.

    `api_keys`: SHA-256 digests. Raises AuthConfigError.
    """
    static_keys = _static_keys(api_keys)
    shared = _shared_limits(rate_limit_storage) if rate_limit_storage is not None else None
    keys, watchers = ApiKeys(static_keys, shared), list[Watcher]()
    if keys_file is not None:
        file_watcher = _watch_file(keys_file, static_keys, shared)
        keys = file_watcher.keys
        watchers.append(file_watcher)
    if jwks is not None:
        watchers.append(_watch_jwks(keys, jwks, jwt_issuer, jwt_audience, shared))
    return Authenticator(keys, watchers, shared) if static_keys or watchers else None


def _static_keys(digests: Sequence[str]) -> list[Key]:
    """Keys with all scopes. Their names contain a colon, which names in a keys file cannot."""
    return [
        Key(name=f"api_key:{number}", digest=digest, scopes=frozenset(SCOPES))
        for number, digest in enumerate(digests, 1)
    ]


def _shared_limits(url: str) -> "RedisRequestLimits":
    try:
        from openai_frontend.auth.redis_limits import RedisRequestLimits
    except ImportError:
        message = "rate_limit_storage: not installed; install openai-frontend[redis]"
        raise AuthConfigError(message) from None
    try:
        return RedisRequestLimits(url)
    except ValueError as error:
        raise AuthConfigError(f"rate_limit_storage: {error}") from None


def _watch_file(
    path: Path, static_keys: Sequence[Key], shared: SharedRequestLimits | None
) -> KeysFileWatcher:
    try:
        return KeysFileWatcher(path, static_keys, shared)
    except InvalidKeysFile as error:
        raise AuthConfigError(f"keys_file: {error}") from None


def _watch_jwks(
    keys: ApiKeys,
    jwks: str,
    issuer: str | None,
    audience: str | None,
    shared: SharedRequestLimits | None,
) -> Watcher:
    if issuer is None or audience is None:
        raise AuthConfigError("jwks: jwt_issuer and jwt_audience must be set with it")
    try:
        from openai_frontend.auth.jwks_watcher import JWKSWatcher
        from openai_frontend.auth.jwt_verifier import JWTVerifier
    except ImportError:
        message = "jwks: PyJWT is not installed; install openai-frontend[jwt]"
        raise AuthConfigError(message) from None
    verifier = JWTVerifier(issuer=issuer, audience=audience, shared=shared)
    try:
        watcher = JWKSWatcher(jwks, verifier)
    except ValueError as error:
        raise AuthConfigError(f"jwks: {error}") from None
    keys.token_verifier = verifier
    return watcher
