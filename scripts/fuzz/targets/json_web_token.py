"""Tokens and providers' keys: only a token that the provider has signed authenticates a caller."""

import base64
import time
from typing import Any

import jwt
import orjson

from openai_frontend.auth.api_keys import ApiKeys
from openai_frontend.auth.jwt_verifier import InvalidJWKS, JWTVerifier
from openai_frontend.errors import NotAuthenticated
from scripts.fuzz.draw import Draw
from tests.fast.auth.tokens import AUDIENCE, ISSUER, jwks

_PROVIDER = jwks("EdDSA", "ES256")
_SIGNED = "EdDSA"

WORDS = (
    *('"alg":"', "none", "HS256", "ES256", "EdDSA", '"kid":"EdDSA"', '"exp":', '"sub":"alice"'),
    *(f'"iss":"{ISSUER}"', f'"aud":"{AUDIENCE}"', '"nbf":', '"crit":["exp"]', '"b64":false'),
    *('"openai_frontend":{', '"models":["a"]', '"scope":"inference"', '"jwk":{', '"kty":"oct"'),
    *(
        '"keys":[',
        '"kty":"OKP"',
        '"crv":"Ed25519"',
        '"x":"',
        '"use":"sig"',
        "1e999",
        "-1",
        "ey",
        "..",
    ),
)
_CLAIMS = orjson.dumps({"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": 4_000_000_000})
SEEDS = (
    b"\x00eyJhbGciOiJub25lIiwia2lkIjoiRWREU0EifQ.e30.",
    b"\x01" + _CLAIMS,
    b'\x01{"exp":1e308,"sub":1}',
    b'\x02{"alg":"EdDSA","kid":"EdDSA"}\n' + _CLAIMS,
    b'\x02{"alg":"HS256","kid":"EdDSA"}\n' + _CLAIMS,
    b"\x03" + _PROVIDER,
)


def check(data: bytes) -> None:
    draw = Draw(data)
    (_as_header, _as_claims, _as_parts, _as_jwks)[draw.byte() % 4](draw.rest())


def _as_header(secret: bytes) -> None:
    """No input can be signed, because the keys are new in each process."""
    assert _find(secret) is None


def _as_claims(payload: bytes) -> None:
    """A token of the provider is accepted only for the right audience and until it expires."""
    signed = jwt.api_jws.encode(payload, _key(), algorithm=_SIGNED, headers={"kid": _SIGNED})
    caller = _find(signed.encode())
    if caller is not None:
        claims = orjson.loads(payload)
        assert claims["iss"] == ISSUER
        assert AUDIENCE in claims["aud"]
        assert int(claims["exp"]) > time.time() - 60
        assert caller.key.name.startswith("jwt:")


def _as_parts(data: bytes) -> None:
    """Any header and any claims, without a valid signature."""
    header, _, payload = data.partition(b"\n")
    parts = [base64.urlsafe_b64encode(part).rstrip(b"=") for part in (header, payload, b"x" * 64)]
    assert _find(b".".join(parts)) is None


def _as_jwks(given: bytes) -> None:
    try:
        assert JWTVerifier(issuer=ISSUER, audience=AUDIENCE).set_keys(given) > 0
    except InvalidJWKS as error:
        assert "\n" not in str(error)


def _ring() -> ApiKeys:
    tokens = JWTVerifier(issuer=ISSUER, audience=AUDIENCE)
    tokens.set_keys(_PROVIDER)
    keys = ApiKeys(())
    keys.token_verifier = tokens
    return keys


_RING = _ring()


def _key() -> Any:
    from tests.fast.auth.tokens import _KEYS

    return _KEYS[_SIGNED]


def _find(secret: bytes) -> Any:
    try:
        return _RING.authenticate(secret)
    except NotAuthenticated as error:
        assert len(error.message) < 200
        return None
