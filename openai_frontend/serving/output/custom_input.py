"""The input of a custom tool, which models write as a JSON object with one text.

Decoded piece by piece, as it arrives.
"""

import json
import re

_OPENING = re.compile(r'[ \t\r\n]*+\{[ \t\r\n]*+"input"[ \t\r\n]*+:[ \t\r\n]*+"')
_MAX_OPENING = 256
_WITHIN = re.compile(r'(?>[^"\\]++|\\u[0-9a-fA-F]{4}|\\["\\/bfnrt])*+')  # no backtracking
_BEGUN = re.compile(r"(?:\\(?:u[0-9a-fA-F]{0,3})?)?")  # an incomplete escape
_HALF_A_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}|[\ud800-\udbff]")


class CustomInputDecoder:
    """Decodes the object piece by piece. An object of another form is the input as it is."""

    def __init__(self) -> None:
        self._pending = ""  # received, not returned yet
        self._other: list[str] = []  # an object of another form, in full
        self._within = False  # after the input's opening quote
        self._over = False

    def feed(self, text: str) -> str:
        """The text that this piece adds to the input."""
        if self._over:
            return ""
        if self._other:
            self._other.append(text)
            return ""
        self._pending += text
        if not self._within:
            self._open()
        return self._decode() if self._within else ""

    def finish(self) -> str:
        """The pending text: everything if the object has another form."""
        if self._within and not self._over:
            return "\ufffd" if _HALF_A_PAIR.match(self._pending) else ""
        return "" if self._over else "".join([*self._other, self._pending])

    def _open(self) -> None:
        if opening := _OPENING.match(self._pending):
            self._within = True
            self._pending = self._pending[opening.end() :]
        elif len(self._pending) > _MAX_OPENING:
            self._other, self._pending = [self._pending], ""

    def _decode(self) -> str:
        """The text up to the closing quote or an incomplete escape."""
        spelled, at = [], 0
        while matched := _WITHIN.match(self._pending, at):
            spelled.append(matched.group())
            at = matched.end()
            self._over = self._pending.startswith('"', at)
            if self._over or _BEGUN.fullmatch(self._pending, at):
                break
            spelled.append(r"\\")  # not a JSON escape: a literal backslash
            at += 1
        text = "".join(spelled)
        half = 0 if self._over else _half_a_pair(text)
        self._pending = self._pending[at - half :]
        decoded: str = json.loads(f'"{text[: len(text) - half]}"', strict=False)
        return decoded.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _half_a_pair(text: str) -> int:
    """Length of the half of a surrogate pair at the end of the JSON text, whose other half may
    follow; 0 if there is none.
    """
    for length in (6, 1):  # an escape, and the half itself
        if len(text) >= length and _HALF_A_PAIR.fullmatch(text, len(text) - length):
            before = text[:-length]
            backslashes = len(before) - len(before.rstrip("\\"))
            return 0 if backslashes % 2 else length  # after a backslash it is not an escape
    return 0
