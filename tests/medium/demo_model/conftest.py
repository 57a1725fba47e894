"""The committed demo model, loaded with transformers."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # takes seconds
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

WEIGHTS = Path(__file__).parents[3] / "model_repository" / "demo" / "1" / "weights"


@pytest.fixture(scope="session")
def weights() -> Path:
    """The folder that the engine loads."""
    return WEIGHTS


@pytest.fixture(scope="session")
def tokenizer() -> "PreTrainedTokenizerFast":
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(WEIGHTS)


@pytest.fixture(scope="session")
def one_torch_thread() -> None:
    """Two threads wait for each other: a model this small takes 13 times the CPU time."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model(one_torch_thread: None) -> "LlamaForCausalLM":
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(WEIGHTS).eval()
