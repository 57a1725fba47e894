"""Everything that says who may come in, put together."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from openai_frontend.auth.api_keys import ApiKeys
from openai_frontend.auth.keys import Key
from openai_frontend.auth.keys_file import InvalidKeysFile
from openai_frontend.auth.keys_watcher import KeysFileWatcher
from openai_frontend.auth.scopes import SCOPES


class AuthConfigError(Exception):
    """It cannot be said who may come in; the message is one line that begins with a setting."""


class Watcher(Protocol):
    """Something outside that changes while the server runs."""

    async def follow(self) -> None:
        """For ever."""


@dataclass(frozen=True, slots=True)
class Authenticator:
    """Who may come in, and what is to be followed for it."""

    ring: ApiKeys
    followed: Sequence[Watcher]


def build_authenticator(
    *,
    keys_file: Path | None,
    api_keys: Sequence[str] = (),
    jwks: str | None,
    jwt_issuer: str | None,
    jwt_audience: str | None,
) -> Authenticator | None:
    """From the settings; None if everybody may come in. `api_keys`: SHA-256 digests.

    Raises AuthConfigError.
    """
    general = _general_keys(api_keys)
    ring, followed = ApiKeys(general), list[Watcher]()
    if keys_file is not None:
        keys = _keys(keys_file, general)
        ring = keys.ring
        followed.append(keys)
    if jwks is not None:
        followed.append(_tokens(ring, jwks, jwt_issuer, jwt_audience))
    return Authenticator(ring, followed) if general or followed else None


def _general_keys(digests: Sequence[str]) -> list[Key]:
    """Keys for everything. Their names have a colon, so no key of a file has the same."""
    return [
        Key(name=f"api_key:{number}", digest=digest, scopes=frozenset(SCOPES))
        for number, digest in enumerate(digests, 1)
    ]


def _keys(path: Path, general: Sequence[Key]) -> KeysFileWatcher:
    try:
        return KeysFileWatcher(path, general)
    except InvalidKeysFile as error:
        raise AuthConfigError(f"keys_file: {error}") from None


def _tokens(ring: ApiKeys, jwks: str, issuer: str | None, audience: str | None) -> Watcher:
    if issuer is None or audience is None:
        raise AuthConfigError("jwks: jwt_issuer and jwt_audience must be set with it")
    try:
        from openai_frontend.auth.jwks_watcher import JWKSWatcher
        from openai_frontend.auth.jwt_verifier import JWTVerifier
    except ImportError:
        message = "jwks: PyJWT is not installed; install openai-frontend[jwt]"
        raise AuthConfigError(message) from None
    tokens = JWTVerifier(issuer=issuer, audience=audience)
    try:
        watched = JWKSWatcher(jwks, tokens)
    except ValueError as error:
        raise AuthConfigError(f"jwks: {error}") from None
    ring.tokens = tokens
    return watched
