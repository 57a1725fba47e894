"""The text that a custom tool is called with, out of the JSON object that the model writes it in.

Models call functions, so they are shown a custom tool as one of a single text: `{"input": "..."}`.
"""

import json
import re

_OPENING = re.compile(r'[ \t\r\n]*+\{[ \t\r\n]*+"input"[ \t\r\n]*+:[ \t\r\n]*+"')
_MAX_OPENING = 256
_WITHIN = re.compile(r'(?>[^"\\]++|\\u[0-9a-fA-F]{4}|\\["\\/bfnrt])*+')  # never goes back
_BEGUN = re.compile(r"(?:\\(?:u[0-9a-fA-F]{0,3})?)?")  # an escape that is not all there
_HALF_A_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}|[\ud800-\udbff]")


class CustomInputDecoder:
    """Fed with pieces of the object's text. An object of another form is the input as it stands."""

    def __init__(self) -> None:
        self._held = ""  # has come and is not told
        self._other: list[str] = []  # all of an object of another form
        self._within = False  # behind the input's opening quote
        self._over = False

    def feed(self, text: str) -> str:
        """What the piece adds to the input."""
        if self._over:
            return ""
        if self._other:
            self._other.append(text)
            return ""
        self._held += text
        if not self._within:
            self._open()
        return self._told() if self._within else ""

    def finish(self) -> str:
        """What was held back: all of it where the object has another form."""
        if self._within and not self._over:
            return "\ufffd" if _HALF_A_PAIR.match(self._held) else ""
        return "" if self._over else "".join([*self._other, self._held])

    def _open(self) -> None:
        if opening := _OPENING.match(self._held):
            self._within = True
            self._held = self._held[opening.end() :]
        elif len(self._held) > _MAX_OPENING:
            self._other, self._held = [self._held], ""

    def _told(self) -> str:
        """The text up to the closing quote, or to an escape that is not all there."""
        spelled, at = [], 0
        while matched := _WITHIN.match(self._held, at):
            spelled.append(matched.group())
            at = matched.end()
            self._over = self._held.startswith('"', at)
            if self._over or _BEGUN.fullmatch(self._held, at):
                break
            spelled.append(r"\\")  # JSON has no such escape: a sign of its own
            at += 1
        text = "".join(spelled)
        half = 0 if self._over else _half_a_pair(text)
        self._held = self._held[at - half :]
        read: str = json.loads(f'"{text[: len(text) - half]}"', strict=False)
        return read.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _half_a_pair(text: str) -> int:
    """The length of the half of a character that the JSON text ends with, whose other half may
    come; 0: it ends with none.
    """
    for length in (6, 1):  # an escape, and the half itself
        if len(text) >= length and _HALF_A_PAIR.fullmatch(text, len(text) - length):
            before = text[:-length]
            backslashes = len(before) - len(before.rstrip("\\"))
            return 0 if backslashes % 2 else length  # behind a backslash it is no escape
    return 0
