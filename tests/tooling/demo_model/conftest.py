"""The committed demo model, loaded with transformers."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

WEIGHTS = Path(__file__).parents[3] / "model_repository" / "demo" / "1" / "weights"


@pytest.fixture(scope="session")
def weights() -> Path:
    """The folder that the engine loads."""
    return WEIGHTS


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(WEIGHTS)


@pytest.fixture(scope="session")
def model() -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(WEIGHTS).eval()
