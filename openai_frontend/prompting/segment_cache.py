"""Remembers the token ids of segments: a special token and the text up to the next one.

A tokenizer splits a text at its special tokens first, so the ids of a segment do not depend on the
segments around it. The next turn of a conversation tokenizes only what is new, and the tools of an
agent are tokenized once. Text of a client that looks like a special token never gets here.
"""

import re
import sys
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, cast

from openai_frontend.prompting.special_tokens import one_of
from openai_frontend.prompting.tokenizer import (
    FEW_IDS,
    PackedEncoding,
    TokenIds,
    Tokenizer,
    pack,
)

if TYPE_CHECKING:
    from tokenizers import AddedToken

    from openai_frontend.prompting.tokenizer import Encoding

MAX_BYTES = 32 * 1024 * 1024  # of all segments of one tokenizer, with their ids
_ENTRY_BYTES = 100  # of the dictionary, for a segment
_NO_IDS = TokenIds("i")


class SegmentCache:
    """For one tokenizer, in any thread."""

    def __init__(self, tokenizer: Tokenizer, *, max_bytes: int = MAX_BYTES) -> None:
        self._tokenizer = tokenizer
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._known: OrderedDict[str, TokenIds] = OrderedDict()  # the latest is last
        self._bytes = 0
        boundaries = _boundaries(tokenizer.fast.get_added_tokens_decoder().values())
        self._pattern = re.compile(f"({one_of(boundaries)})") if boundaries else None
        if not self._agrees(boundaries):
            self._pattern = None

    @property
    def enabled(self) -> bool:
        """Whether the tokenizer has special tokens at which texts can be cut."""
        return self._pattern is not None

    def encode(self, text: str) -> "SegmentedEncoding":
        """Tokenize what is not known, releasing the GIL. Adds no special tokens."""
        segments = self._cut(text)
        parts: list[TokenIds | Encoding] = []
        new = []  # the indexes of segments that are not known
        with self._lock:
            known, ordered = self._known, self._bytes * 2 > self._max_bytes
            for i, segment in enumerate(segments):
                if segment not in known:
                    new += [i]
                    parts += [_NO_IDS]
                    continue
                parts += [known[segment]]
                if ordered:  # before, none will be forgotten soon
                    known.move_to_end(segment)
        if new:
            texts = [segments[i] for i in new]
            encoded = self._tokenizer.encode_all(texts, add_special_tokens=False)
            for i, encoding in zip(new, encoded, strict=True):
                parts[i] = encoding
        return SegmentedEncoding(self, segments, parts)

    def add(self, segment: str, token_ids: TokenIds) -> None:
        """Remember a segment, and forget the oldest beyond the limit."""
        with self._lock:
            if (before := self._known.pop(segment, None)) is not None:
                self._bytes -= _size(segment, before)
            self._known[segment] = token_ids
            self._bytes += _size(segment, token_ids)
            while self._bytes > self._max_bytes:
                self._bytes -= _size(*self._known.popitem(last=False))

    def _cut(self, text: str) -> list[str]:
        if self._pattern is None:
            return [text] if text else []
        first, *parts = self._pattern.split(text)
        segments = [token + rest for token, rest in zip(parts[::2], parts[1::2], strict=True)]
        return [first, *segments] if first else segments

    def _agrees(self, boundaries: Sequence[str]) -> bool:
        """Whether a text's segments have the ids that the tokenizer gives the whole text."""
        text = "".join(f"a {token} b\n{token}{token}c{token}  " for token in boundaries[:8])
        whole = self._tokenizer.encode(text, add_special_tokens=False)
        return list(self.encode(text).ids) == list(whole.ids)


def _size(segment: str, token_ids: TokenIds) -> int:
    return sys.getsizeof(segment) + sys.getsizeof(token_ids) + _ENTRY_BYTES


class SegmentedEncoding:
    """A text's segments: token ids of known ones, encodings of new ones."""

    __slots__ = ("_cache", "_parts", "_segments")

    def __init__(
        self, cache: SegmentCache, segments: Sequence[str], parts: "Sequence[TokenIds | Encoding]"
    ) -> None:
        self._cache = cache
        self._segments = segments
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    def ids(self) -> list[int] | TokenIds:
        """All token ids; the new segments are known from now on. A list of few ids, an array of
        more.
        """
        whole = TokenIds("i")
        for segment, part in zip(self._segments, self._parts, strict=True):
            if type(part) is array:
                whole += part
            else:
                new = cast("Encoding", part)
                token_ids = new.packed if isinstance(new, PackedEncoding) else pack(new.ids)
                self._cache.add(segment, token_ids)
                whole += token_ids
        return whole.tolist() if len(whole) < FEW_IDS else whole


def _boundaries(added: "Iterable[AddedToken]") -> list[str]:
    """The special tokens that a tokenizer finds wherever they appear, whatever is beside them.

    Not those that are part of another added token or overlap with one, and not those that take
    white space before them.
    """
    tokens = [*added]
    found = {
        token.content
        for token in tokens
        if token.special and not (token.lstrip or token.normalized or token.single_word)
    }
    hidden = {other for token in tokens for other in _within(token.content, found)}
    return sorted(each for each in found - hidden if len(each) > 1)


def _within(token: str, tokens: set[str]) -> Iterator[str]:
    """Other tokens that begin within a token."""
    for at in range(len(token)):
        rest = token[at:]
        for end in range(1, len(rest) + 1):
            if rest[:end] in tokens and rest[:end] != token and (at or token not in tokens):
                yield rest[:end]
        if at:
            yield from (each for each in tokens if each != token and each.startswith(rest))
