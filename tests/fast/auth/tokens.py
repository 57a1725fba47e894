"""An identity provider for tests: it signs tokens, and tells its keys."""

import time
from typing import Any

import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER, AUDIENCE = "https://issuer.test", "openai-frontend"

_KEYS: dict[str, Any] = {
    "RS256": rsa.generate_private_key(65537, 2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
_FORMS: dict[str, Any] = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}


def jwks(*algorithms: str) -> bytes:
    """The public keys; each one's id is its algorithm."""
    return orjson.dumps({"keys": [public(each) for each in algorithms or _KEYS]})


def public(algorithm: str) -> dict[str, Any]:
    form: dict[str, Any] = _FORMS[algorithm].to_jwk(_KEYS[algorithm].public_key(), as_dict=True)
    return {**form, "kid": algorithm, "alg": algorithm, "use": "sig"}


def token(
    *, algorithm: str = "ES256", kid: str | None = None, key: Any = None, **claims: Any
) -> bytes:
    """One that is in force for an hour, unless told; a claim of None is left out."""
    given = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "alice",
        "exp": int(time.time()) + 3600,
        "scope": "inference models",
        **claims,
    }
    told = {name: value for name, value in given.items() if value is not None}
    headers = {"kid": kid or algorithm}
    signed = jwt.encode(told, key or _KEYS[algorithm], algorithm=algorithm, headers=headers)
    return signed.encode()
