"""Reasoning in a form that only this gateway's replicas read, for clients that return it unseen.

With a secret of the deployment it is encrypted for its tenant, otherwise only compressed. What one
replica has written, another one reads, also after a restart.
"""

import base64
import secrets
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Protocol

# The version of the form; another server's text has another beginning
_COMPRESSED, _ENCRYPTED = "ofr1.", "ofr2."
_LONGEST = 4 * 1024 * 1024  # bytes of text, also of all texts of one request
_MOST_EXPANDED = 1032  # times that zlib's format can expand its input
_LONGEST_SEALED = 2 * _LONGEST
_NONCE_BYTES = 12  # random, so NIST allows 2**32 texts of one tenant
_KEY_BYTES = 32


class Cipher(Protocol):
    """AES-GCM with one key."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None, /) -> bytes: ...

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None, /) -> bytes:
        """Raises InvalidTag for a text of another key, and for a damaged one."""


@dataclass(frozen=True, slots=True)
class TextSeal:
    """Seals the texts of one tenant."""

    cipher: Cipher | None = None

    def __call__(self, text: str) -> str:
        """The text, compressed, and encrypted if there is a key."""
        compressed = zlib.compress(text.encode("utf-8", "surrogatepass"))
        if self.cipher is None:
            return _COMPRESSED + base64.b64encode(compressed).decode()
        nonce = secrets.token_bytes(_NONCE_BYTES)
        encrypted = self.cipher.encrypt(nonce, compressed, None)
        return _ENCRYPTED + base64.b64encode(nonce + encrypted).decode()


UNENCRYPTED = TextSeal()


class TextSeals:
    """The seals of a deployment."""

    def __init__(self, secret: str | None = None) -> None:
        """Servers with the same secret read each other's texts; None means no encryption.

        Raises ImportError for a secret without the package `cryptography`.
        """
        self._secret = None if secret is None else secret.encode()
        self._cipher: Callable[[str], Cipher] = lru_cache(maxsize=1024)(self._derived)
        if secret is not None:
            self._cipher("")  # fails now instead of in a request

    def of(self, tenant: str) -> TextSeal:
        """The seal of the key with this digest; "" is everyone without a key."""
        return TextSeal(None if self._secret is None else self._cipher(tenant))

    def _derived(self, tenant: str) -> Cipher:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        info = f"openai-frontend reasoning/{tenant}".encode()
        key = HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=None, info=info)
        return AESGCM(key.derive(self._secret or b""))


def can_encrypt() -> bool:
    """Whether `cryptography` is installed, which the extra `jwt` requires."""
    return find_spec("cryptography") is not None


class Unsealer:
    """Reads the texts of one request. Their total is limited, because 1 KB may contain 1 MB."""

    def __init__(self, seal: TextSeal = UNENCRYPTED) -> None:
        self._cipher = seal.cipher
        self._left = _LONGEST

    def read(self, sealed: str | None) -> str | None:
        """The text; None if it is another server's or tenant's, or damaged, or beyond the limit."""
        if not sealed or len(sealed) > _LONGEST_SEALED or self._left == 0:
            return None
        try:
            compressed = self._compressed(sealed)
            text = None if compressed is None else self._inflated(compressed)
            return None if text is None else text.decode("utf-8", "surrogatepass")
        except (ValueError, zlib.error):  # no base64, or no UTF-8
            return None

    def _compressed(self, sealed: str) -> bytes | None:
        """A text that is not encrypted is read also with a key: a client may send any text."""
        version, content = sealed[: len(_COMPRESSED)], sealed[len(_COMPRESSED) :]
        if version == _COMPRESSED:
            return base64.b64decode(content, validate=True)
        if version != _ENCRYPTED or self._cipher is None:
            return None
        return _decrypted(self._cipher, base64.b64decode(content, validate=True))

    def _inflated(self, compressed: bytes) -> bytes | None:
        """The bytes. If they are damaged, as many count as they may have been."""
        inflater = zlib.decompressobj()
        spent = min(self._left, _MOST_EXPANDED * len(compressed))
        try:
            text = inflater.decompress(compressed, self._left)
            spent = len(text)
        finally:
            self._left -= spent
        return text if inflater.eof else None


def _decrypted(cipher: Cipher, content: bytes) -> bytes | None:
    from cryptography.exceptions import InvalidTag

    try:
        return cipher.decrypt(content[:_NONCE_BYTES], content[_NONCE_BYTES:], None)
    except InvalidTag:
        return None
