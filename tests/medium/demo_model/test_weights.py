"""The committed weights: small, plain float32, and with known answers."""

import json

import pytest
from safetensors import safe_open

from scripts.demo_model.prompts import read_prompts

pytestmark = pytest.mark.slow  # imports torch

STABLE = read_prompts("stable")


def test_weights_are_small(weights):
    """All files together are below 5 MB."""
    assert sum(path.stat().st_size for path in weights.iterdir()) < 5_000_000


def test_weights_are_float32(weights):
    """A float32 engine loads them without conversion."""
    with safe_open(weights / "model.safetensors", "pt") as tensors:
        found = {tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118

    assert found == {"F32"}


def test_config_is_that_of_a_tiny_llama(weights):
    """4 layers of 128 with 4 heads, 2 for keys and values; a context of 2,048 tokens."""
    config = json.loads((weights / "config.json").read_text())

    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["num_hidden_layers"], config["hidden_size"]) == (4, 128)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (4, 2)
    assert (config["vocab_size"], config["max_position_embeddings"]) == (2048, 2048)
    assert config["tie_word_embeddings"] is True


def test_model_has_about_a_million_parameters(model):
    """The number that its files state."""
    assert 900_000 < model.num_parameters() < 1_000_000


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
