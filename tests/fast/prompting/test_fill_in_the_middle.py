"""Fill-in-the-middle prompts of families of code models."""

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
def test_prompt_has_the_format_of_the_training(name: str, prompt: str) -> None:
    """Its tokens and their order."""

    [found] = [each for each in FORMATS if each.names.split(", ")[0].startswith(name)]
    assert prompt == found.prompt("a", "b")


@pytest.mark.parametrize("expected", FORMATS, ids=lambda each: each.names)
def test_format_is_detected_by_its_tokens(expected: InfillFormat) -> None:
    """A vocabulary with all tokens of one format, and of no other, has that format."""

    assert detect(expected.tokens.__contains__) is expected


def test_single_token_detects_no_format() -> None:
    assert detect(["<fim_prefix>", "<fim_suffix>", "[PREFIX]"].__contains__) is None


def test_texts_are_literal() -> None:
    """Text that looks like a part of the format stays text."""

    assert FORMATS[1].prompt("suffix", "{prefix}") == (
        "<fim_prefix>suffix<fim_suffix>{prefix}<fim_middle>"
    )
