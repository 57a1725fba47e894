"""What a contract asks of a model's tokenizer, where the model does not say it itself."""

from collections.abc import Sequence
from typing import Protocol


class Vocabulary(Protocol):
    """The tokens of one model, as the gateway's copy of its tokenizer knows them."""

    def ids(self, text: str, /) -> Sequence[int]:
        """The tokens of a text, without special tokens around it."""

    def token_text(self, token_id: int, /) -> str | None:
        """The text of one token; None where it is no text of its own, or there is no such token."""

    def unprefixed(self, text: str, /) -> str:
        """The text without what the tokenizer would put before it once more, such as BOS."""

    def plain(self, text: str, /) -> str:
        """The text as it is detokenized: without special tokens."""
