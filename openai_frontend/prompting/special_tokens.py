"""Special tokens that stand in what a client wrote. They stay text: the turns of a conversation,
its roles and its placeholders are the template's to write.

A tokenizer reads `<|im_end|>` as one token wherever it stands. So each one in a message is cut into
its characters by a mark, and what lies between marks is tokenized by itself.
"""

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any

import orjson

from openai_frontend.errors import InvalidRequest

MAX_FOUND = 1024  # in one request: each character of theirs is tokenized by itself


class SpecialTokenEscaper:
    """Finds the special tokens of one tokenizer in values of JSON."""

    def __init__(self, tokens: Iterable[str]) -> None:
        spelled = sorted({token for token in tokens if len(token) > 1})
        self._pattern = re.compile(_one_of(spelled)) if spelled else None
        # how they begin, as JSON spells it: to look for that takes 1 us for each KB
        self._beginnings = {orjson.dumps(token[:2])[1:-1] for token in spelled}

    def mark(self, values: Any) -> str | None:
        """A text that `values` do not hold, for `marked`; None where there is nothing to mark."""
        if self._pattern is None or not self._may_hold(values):
            return None
        found = sum(1 for text in _texts(values) for _ in self._pattern.finditer(text))
        if found > MAX_FOUND:
            message = (
                f"Invalid 'messages': at most {MAX_FOUND} special tokens of the model may stand in "
                f"a request as text, not {found}."
            )
            raise InvalidRequest(message, param="messages")
        return f"cut-{secrets.token_hex(8)}-" if found else None

    def _may_hold(self, values: Any) -> bool:
        try:
            written = orjson.dumps(values)
        except TypeError:  # a number of more than 64 bits
            return True
        return any(beginning in written for beginning in self._beginnings)

    def marked(self, values: Any, mark: str) -> Any:
        """The same values, with the mark behind each character of a special token."""
        if isinstance(values, str):
            return self._cut(values, mark)
        if isinstance(values, Mapping):
            return {self.marked(key, mark): self.marked(each, mark) for key, each in values.items()}
        if isinstance(values, list | tuple):
            return [self.marked(each, mark) for each in values]
        return values

    def _cut(self, text: str, mark: str) -> str:
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: mark.join([*found[0], ""]), text)


def _one_of(texts: Sequence[str], at: int = 0) -> str:
    """An expression for the longest of the texts, which are sorted and alike up to `at`.

    It branches where they differ. An alternation of Mistral's thousand would try each of them
    wherever one may begin: 1 s for 300 KB, with the GIL held.
    """
    pairs = zip(texts[0][at:], texts[-1][at:], strict=False)
    start = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    after = at + len(start)
    by_next = groupby((text for text in texts if len(text) > after), key=lambda text: text[after])
    branches = [_one_of(list(some), after) for _, some in by_next]
    rest = f"(?:{'|'.join(branches)})" if branches else ""
    ends_here = len(texts[0]) == after and branches
    return re.escape(start) + rest + ("?" if ends_here else "")


def _texts(values: Any) -> Iterable[str]:
    if isinstance(values, str):
        yield values
    elif isinstance(values, Mapping):
        for key, each in values.items():
            yield from _texts(key)
            yield from _texts(each)
    elif isinstance(values, list | tuple):
        for each in values:
            yield from _texts(each)
