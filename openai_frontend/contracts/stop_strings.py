"""Cuts a text at the first of its stop strings. Synchronous, without I/O."""

from collections.abc import Sequence


class StopStrings:
    """Cuts a text that comes in pieces. Holds back what may be the start of a stop string.

    The result does not depend on how the text is split into pieces.
    """

    def __init__(self, texts: Sequence[str], *, included: bool = False) -> None:
        """`included`: keep the stop string in the text."""
        self._matchers = [_Matcher(text) for text in texts]
        self._included = included
        self._waiting = ""
        self.found: str | None = None

    def feed(self, piece: str) -> str:
        """The text that certainly precedes any stop string. Empty once one was found."""
        if self.found is not None:
            return ""
        for at, character in enumerate(piece, start=1):
            matched = [matcher.text for matcher in self._matchers if matcher.feed(character)]
            if matched:
                self.found = max(matched, key=len)
                return self._cut(self._waiting + piece[:at], self.found)
        text = self._waiting + piece
        sure = len(text) - max(matcher.matched for matcher in self._matchers)
        self._waiting = text[sure:]
        return text[:sure]

    def finish(self) -> str:
        """The text that was held back."""
        rest, self._waiting = self._waiting, ""
        return rest

    def _cut(self, text: str, found: str) -> str:
        self._waiting = ""
        return text if self._included else text[: len(text) - len(found)]


class _Matcher:
    """Matches one stop string by the Knuth-Morris-Pratt algorithm, in constant time per step."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._shorter = _borders(text)

    def feed(self, character: str) -> bool:
        """True if the character completes the stop string."""
        while self.matched and self.text[self.matched] != character:
            self.matched = self._shorter[self.matched]
        self.matched += self.text[self.matched] == character
        return self.matched == len(self.text)


def _borders(text: str) -> list[int]:
    """For each prefix of the text: the length of its longest border."""
    borders = [0, 0]
    for character in text[1:]:
        border = borders[-1]
        while border and text[border] != character:
            border = borders[border]
        borders.append(border + (text[border] == character))
    return borders
