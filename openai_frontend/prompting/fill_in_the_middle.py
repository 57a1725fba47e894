"""Fill-in-the-middle formats of code models, by their special tokens.

Never tokenizes. A format is recognised by its special tokens, which no other model has.
"""

from collections.abc import Callable
from dataclasses import dataclass

# Placeholders in a format
PREFIX = "prefix"
SUFFIX = "suffix"


@dataclass(frozen=True, slots=True)
class InfillFormat:
    """Models that were trained on one format; they generate after its end."""

    names: str
    parts: tuple[str, ...]  # special tokens, PREFIX and SUFFIX

    @property
    def tokens(self) -> list[str]:
        """The special tokens; the vocabulary of such a model has all of them."""
        return [part for part in self.parts if part not in (PREFIX, SUFFIX)]

    def prompt(self, prefix: str, suffix: str) -> str:
        """The format with both texts filled in."""
        texts = {PREFIX: prefix, SUFFIX: suffix}
        return "".join(texts.get(part, part) for part in self.parts)


# From model cards, papers and tokenizers. The first match is used.
FORMATS = (
    InfillFormat(
        "Qwen2.5-Coder, Qwen3-Coder, CodeGemma, Yi-Coder, Granite 4",
        ("<|fim_prefix|>", PREFIX, "<|fim_suffix|>", SUFFIX, "<|fim_middle|>"),
    ),
    InfillFormat(
        "StarCoder, StarCoder2, StableCode, CodeQwen1.5, Granite Code, Refact",
        ("<fim_prefix>", PREFIX, "<fim_suffix>", SUFFIX, "<fim_middle>"),
    ),
    InfillFormat(
        "SantaCoder",
        ("<fim-prefix>", PREFIX, "<fim-suffix>", SUFFIX, "<fim-middle>"),
    ),
    InfillFormat(
        "DeepSeek-Coder, DeepSeek-V2 and later",
        ("<｜fim▁begin｜>", PREFIX, "<｜fim▁hole｜>", SUFFIX, "<｜fim▁end｜>"),  # noqa: RUF001
    ),
    InfillFormat(
        "Seed-Coder",
        ("<[fim-suffix]>", SUFFIX, "<[fim-prefix]>", PREFIX, "<[fim-middle]>"),
    ),
    InfillFormat(
        "CodeLlama",
        ("▁<PRE>", PREFIX, "▁<SUF>", SUFFIX, "▁<MID>"),
    ),
    InfillFormat(
        "Codestral, Devstral and others with Mistral's tokenizer",
        ("[SUFFIX]", SUFFIX, "[PREFIX]", PREFIX),
    ),
)


def detect(has_token: Callable[[str], bool]) -> InfillFormat | None:
    """The format whose tokens are all in the vocabulary."""
    return next((each for each in FORMATS if all(map(has_token, each.tokens))), None)
