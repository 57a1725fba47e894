"""The text of `encrypted_content`: reasoning in a form that only this gateway's replicas read.

The response shows the same reasoning as text, so nothing is secret here, and nothing depends on
a key: what one replica has written, another one reads, also after a restart.
"""

import base64
import binascii
import zlib

_PREFIX = "ofr1."  # the version of the form; another server's text has another beginning
_LONGEST = 4 * 1024 * 1024  # bytes of text
_LONGEST_SEALED = 2 * _LONGEST


def seal(text: str) -> str:
    """The text, compressed."""
    return _PREFIX + base64.b64encode(zlib.compress(text.encode())).decode()


def unseal(sealed: str | None) -> str | None:
    """The text; None if it is another server's, or damaged."""
    if not sealed or not sealed.startswith(_PREFIX) or len(sealed) > _LONGEST_SEALED:
        return None
    try:
        compressed = base64.b64decode(sealed[len(_PREFIX) :], validate=True)
        inflater = zlib.decompressobj()
        text = inflater.decompress(compressed, _LONGEST)
        return text.decode() if inflater.eof else None
    except (binascii.Error, zlib.error, UnicodeDecodeError):
        return None
