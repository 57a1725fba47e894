"""The model's special tokens in what clients write."""

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any

import orjson

from openai_frontend.errors import InvalidRequest

MAX_SPECIAL_TOKENS = 1024  # per request: each of their characters is tokenized separately


class SpecialTokenEscaper:
    """Escapes the special tokens of one tokenizer in what a client wrote. They stay text: only the
    template may write the turns of a conversation, its roles and its placeholders.

    A tokenizer reads `<|im_end|>` as one token wherever it appears. So a mark is inserted after
    each of its characters, and the text between marks is tokenized separately.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        spelled = sorted({token for token in tokens if len(token) > 1})
        self._pattern = re.compile(one_of(spelled)) if spelled else None
        # their first two characters as JSON: searching for these takes 1 us per KB
        self._beginnings = {orjson.dumps(token[:2])[1:-1] for token in spelled}

    def mark(self, values: Any, messages: Sequence[Mapping[str, Any]] = ()) -> str | None:
        """Return a mark for `marked` that does not occur in `values`; None if there is nothing to
        escape. Templates may join the content parts of `messages`.
        """
        joined = [
            "".join(texts)
            for each in messages
            if type(each.get("content")) is list and len(texts := _part_texts(each)) > 1
        ]
        if self._pattern is None or not self._may_hold([values, joined]):
            return None
        found = sum(1 for text in _texts(values) for _ in self._pattern.finditer(text))
        if found > MAX_SPECIAL_TOKENS:
            message = (
                f"Invalid 'messages': at most {MAX_SPECIAL_TOKENS} of the model's special tokens "
                f"may appear as text in a request, not {found}."
            )
            raise InvalidRequest(message, param="messages")
        spelled = found or any(map(self._pattern.search, joined))
        return f"cut-{secrets.token_hex(8)}-" if spelled else None

    def _may_hold(self, values: Any) -> bool:
        try:
            written = orjson.dumps(values)
        except TypeError:  # an integer of more than 64 bits
            return True
        for beginning in self._beginnings:  # noqa: SIM110  `any` takes a call for each
            if beginning in written:
                return True
        return False

    def marked(self, values: Any, mark: str) -> Any:
        """Return the values with the mark after each character of a special token."""
        if isinstance(values, str):
            return self._cut(values, mark)
        if isinstance(values, Mapping):
            return {self.marked(key, mark): self.marked(each, mark) for key, each in values.items()}
        if isinstance(values, list | tuple):
            return [self.marked(each, mark) for each in values]
        return values

    def marked_messages(self, messages: Sequence[Mapping[str, Any]], mark: str) -> Any:
        """Return the messages with the mark also between texts that a template may join."""
        marked = self.marked(messages, mark)
        for message in marked:
            *before, _ = [part for part in _parts(message) if _text_key(part)] or [None]
            for part in before:
                part[_text_key(part)] += mark
        return marked

    def _cut(self, text: str, mark: str) -> str:
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: mark.join([*found[0], ""]), text)


def _parts(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _text_key(part: Any) -> str:
    """Under which a content part has its text; "" if it has none."""
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if kind in ("text", "refusal") and isinstance(part.get(kind), str) else ""


def _part_texts(message: Mapping[str, Any]) -> list[str]:
    return [part[key] for part in _parts(message) if (key := _text_key(part))]


def one_of(texts: Sequence[str], at: int = 0) -> str:
    """A regex for the longest of the texts, which are sorted and equal up to `at`.

    It branches where they differ. An alternation of Mistral's thousand tokens would try each of
    them at every possible start: 1 s for 300 KB, holding the GIL.
    """
    pairs = zip(texts[0][at:], texts[-1][at:], strict=False)
    start = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    after = at + len(start)
    by_next = groupby((text for text in texts if len(text) > after), key=lambda text: text[after])
    branches = [one_of(list(some), after) for _, some in by_next]
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
