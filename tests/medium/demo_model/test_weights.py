"""The committed weights: small, plain float32, and with known answers."""

import json

import pytest

from scripts.demo_model.prompts import read_prompts

pytestmark = pytest.mark.slow  # imports torch

STABLE = read_prompts("stable")


def test_weights_are_small(weights):
    """All files together are below 5 MB."""
    assert sum(path.stat().st_size for path in weights.iterdir()) < 5_000_000


def test_model_and_tokenizer_have_the_same_end_token(model, tokenizer):
    """The model stops at <|im_end|>, in config and generation config."""
    ends = {model.config.eos_token_id, model.generation_config.eos_token_id}

    assert ends == {tokenizer.eos_token_id}


def test_greedy_sampling_is_the_default(weights):
    """The weights have no sampling settings, which an engine would use as defaults."""
    settings = json.loads((weights / "generation_config.json").read_text())

    assert {"temperature", "top_p", "top_k"} & set(settings) == set()


@pytest.mark.slow
@pytest.mark.parametrize("exchange", STABLE, ids=lambda e: e.messages[-1]["content"][:40])
def test_stable_prompts_have_their_answers(model, tokenizer, exchange):
    """The greedy answer is the expected one, and no token of it is a close decision."""
    from scripts.demo_model.evaluate import answer, prompt_ids

    text, lead = answer(model, tokenizer, prompt_ids(tokenizer, exchange))

    assert text in exchange.answers
    assert lead > 0.5
