"""How families of code models want the text before and after a gap: a table of their tokens.

Never tokenizes. A family is known by its special tokens, which are names that no other token has.
"""

from collections.abc import Callable
from dataclasses import dataclass

# Where the texts stand in a form
PREFIX = "prefix"
SUFFIX = "suffix"


@dataclass(frozen=True, slots=True)
class InfillFormat:
    """Models that were trained to fill a gap in one form; they go on behind its end."""

    names: str
    form: tuple[str, ...]  # special tokens, PREFIX and SUFFIX

    @property
    def tokens(self) -> list[str]:
        """All of them stand in the vocabulary of such a model."""
        return [part for part in self.form if part not in (PREFIX, SUFFIX)]

    def prompt(self, prefix: str, suffix: str) -> str:
        """The form with both texts in their places."""
        texts = {PREFIX: prefix, SUFFIX: suffix}
        return "".join(texts.get(part, part) for part in self.form)


# From the families' model cards, reports and tokenizers. The first one that fits is taken.
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


def family(holds: Callable[[str], bool]) -> InfillFormat | None:
    """The family whose tokens a vocabulary holds; `holds` says whether it holds one."""
    return next((family for family in FORMATS if all(map(holds, family.tokens))), None)
