"""Cuts a prompt to a number of tokens, as vLLM's `truncate_prompt_tokens` asks. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Truncation:
    """How many tokens of a prompt are kept, and on which side the others are cut."""

    tokens: int
    side: Literal["left", "right"]

    def kept(self, token_ids: Sequence[int]) -> list[int]:
        """The tokens that are left; a prompt that is short enough stays as it is."""
        if len(token_ids) <= self.tokens:
            return list(token_ids)
        cut = token_ids[-self.tokens :] if self.side == "left" else token_ids[: self.tokens]
        return list(cut)
