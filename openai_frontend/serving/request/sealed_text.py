"""Reasoning in a form that only this gateway's replicas read, for clients that return it unseen.

Nothing is secret here, and nothing depends on a key: what one replica has written, another one
reads, also after a restart.
"""

import base64
import zlib

_PREFIX = "ofr1."  # the version of the form; another server's text has another beginning
_LONGEST = 4 * 1024 * 1024  # bytes of text, also of all texts of one request
_MOST_EXPANDED = 1032  # times that zlib's format can expand its input
_LONGEST_SEALED = 2 * _LONGEST


def seal(text: str) -> str:
    """The text, compressed."""
    compressed = zlib.compress(text.encode("utf-8", "surrogatepass"))
    return _PREFIX + base64.b64encode(compressed).decode()


class Unsealer:
    """Reads the texts of one request. Their total is limited, because 1 KB may contain 1 MB."""

    def __init__(self) -> None:
        self._left = _LONGEST

    def read(self, sealed: str | None) -> str | None:
        """The text; None if it is another server's, or damaged, or beyond the limit."""
        if not sealed or not sealed.startswith(_PREFIX) or len(sealed) > _LONGEST_SEALED:
            return None
        if self._left == 0:
            return None
        try:
            text = self._inflated(base64.b64decode(sealed[len(_PREFIX) :], validate=True))
            return None if text is None else text.decode("utf-8", "surrogatepass")
        except (ValueError, zlib.error):  # no base64, or no UTF-8
            return None

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
