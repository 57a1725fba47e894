"""The prompts by which families of code models fill a gap."""

import pytest

from openai_frontend.prompting.fill_in_the_middle import FORMATS, InfillFormat, detect

PROMPTS = {
    "Qwen2.5-Coder": "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
    "StarCoder": "<fim_prefix>a<fim_suffix>b<fim_middle>",
    "SantaCoder": "<fim-prefix>a<fim-suffix>b<fim-middle>",
    "DeepSeek-Coder": "<｜fim▁begin｜>a<｜fim▁hole｜>b<｜fim▁end｜>",  # noqa: RUF001
    "Seed-Coder": "<[fim-suffix]>b<[fim-prefix]>a<[fim-middle]>",
    "CodeLlama": "▁<PRE>a▁<SUF>b▁<MID>",
    "Codestral": "[SUFFIX]b[PREFIX]a",
}


@pytest.mark.parametrize(("name", "prompt"), PROMPTS.items())
def test_a_familys_prompt(name: str, prompt: str) -> None:
    """Tokens and order are those that the family was trained with."""

    [found] = [each for each in FORMATS if each.names.split(", ")[0].startswith(name)]
    assert prompt == found.prompt("a", "b")


@pytest.mark.parametrize("expected", FORMATS, ids=lambda each: each.names)
def test_a_family_is_known_by_its_tokens(expected: InfillFormat) -> None:
    """A vocabulary that holds them all, and no other family's, is of that family."""

    assert detect(expected.tokens.__contains__) is expected


def test_a_vocabulary_without_all_tokens_is_of_no_family() -> None:
    """One token alone says nothing."""

    assert detect(["<fim_prefix>", "<fim_suffix>", "[PREFIX]"].__contains__) is None


def test_the_texts_are_taken_as_they_are() -> None:
    """A text that reads like a part of the form is a text."""

    assert FORMATS[1].prompt("suffix", "{prefix}") == (
        "<fim_prefix>suffix<fim_suffix>{prefix}<fim_middle>"
    )
