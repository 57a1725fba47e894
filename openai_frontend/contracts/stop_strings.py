"""Cuts a text at the first of its stop strings. Synchronous, without I/O."""

from collections.abc import Sequence


class StopStrings:
    """Cuts a text that comes in pieces. What may be the start of a stop text waits for the next
    piece; the same text in other pieces gives the same cut.
    """

    def __init__(self, texts: Sequence[str], *, included: bool = False) -> None:
        """`included`: the stop text itself stays in the text."""
        self._matchers = [_Matcher(text) for text in texts]
        self._included = included
        self._waiting = ""
        self.found: str | None = None

    def feed(self, piece: str) -> str:
        """What is sure to be before the end; once a stop text was found, nothing follows."""
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
        """What waited and was no stop text."""
        rest, self._waiting = self._waiting, ""
        return rest

    def _cut(self, text: str, found: str) -> str:
        self._waiting = ""
        return text if self._included else text[: len(text) - len(found)]


class _Matcher:
    """How much of one text the last characters are, after Knuth, Morris and Pratt: a step takes
    the same time however long the text is.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._shorter = _borders(text)

    def feed(self, character: str) -> bool:
        """True where the character ends the text."""
        while self.matched and self.text[self.matched] != character:
            self.matched = self._shorter[self.matched]
        self.matched += self.text[self.matched] == character
        return self.matched == len(self.text)


def _borders(text: str) -> list[int]:
    """For each length: the longest shorter start of the text that ends there as well."""
    borders = [0, 0]
    for character in text[1:]:
        border = borders[-1]
        while border and text[border] != character:
            border = borders[border]
        borders.append(border + (text[border] == character))
    return borders
