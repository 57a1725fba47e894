"""The text that a custom tool is called with, out of the JSON object that the model writes it in.

Models call functions, so they are shown a custom tool as one of a single text: `{"input": "..."}`.
"""

import json
import re

_OPENING = re.compile(r'[ \t\r\n]*+\{[ \t\r\n]*+"input"[ \t\r\n]*+:[ \t\r\n]*+"')
_MAX_OPENING = 256
_WITHIN = re.compile(r'(?>[^"\\]++|\\u[0-9a-fA-F]{4}|\\["\\/bfnrt])*+')  # never goes back
_BEGUN = re.compile(r"(?:\\(?:u[0-9a-fA-F]{0,3})?)?")  # an escape that is not all there
_HALF_A_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}")


class CustomInput:
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
        told = ""
        while not self._over and (more := self._next()):
            told += more
        return told

    def _next(self) -> str:
        matched = _WITHIN.match(self._held)
        end = matched.end() if matched else 0
        rest = self._held[end:]
        self._over = rest.startswith('"')
        if not end and rest.startswith("\\") and not _BEGUN.fullmatch(rest):
            self._held = rest[1:]
            return "\\"  # JSON has no such escape: a sign of its own
        if _HALF_A_PAIR.fullmatch(self._held[max(end - 6, 0) : end]) and _BEGUN.fullmatch(rest):
            end -= 6  # its other half may come
        text, self._held = self._held[:end], self._held[end:]
        read: str = json.loads(f'"{text}"', strict=False)
        return read.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
