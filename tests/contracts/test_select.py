"""Which contract a config gives a model."""

from collections.abc import Collection
from typing import Any

import pytest

from openai_frontend.contracts.select import NAMES, ContractOptions, select_contracts
from openai_frontend.errors import ModelUnavailable
from tests.contracts.recorded import BLS, ENSEMBLE, INPROCESS, LLMAPI, NVIDIA_VLLM, Letters, tensors


@pytest.mark.parametrize(
    ("config", "tasks", "expected"),
    [
        (NVIDIA_VLLM, None, ("vllm", {"generation", "embedding"})),
        (INPROCESS, ["generate"], ("vllm", {"generation"})),
        (INPROCESS, ["embed"], ("embeddings", {"embedding"})),
        (INPROCESS, ["embed", "score"], ("embeddings", {"embedding", "score"})),
        (ENSEMBLE, None, ("tensorrt_llm", {"generation"})),
        (BLS, None, ("tensorrt_llm", {"generation"})),
        (LLMAPI, None, ("llmapi", {"generation"})),
    ],
)
def test_the_tensors_and_the_engine_choose(
    config: dict[str, Any], tasks: Collection[str] | None, expected: tuple[str, set[str]]
) -> None:
    """A model has the contracts that its tensors allow and its engine says it serves."""

    chosen = select_contracts(config, tasks=tasks)

    kinds = {kind for kind in ("generation", "embedding", "score") if getattr(chosen, kind)}
    assert (chosen.name, kinds) == expected


def test_a_model_of_other_tensors_has_none() -> None:
    """Tensors that no request of ours has make a model that cannot be served here, with reason."""

    with pytest.raises(ModelUnavailable, match="no supported endpoint"):
        select_contracts({"input": tensors("IMAGE:FP32"), "output": tensors("CLASS:FP32")})


def test_what_an_early_release_of_the_backend_does_not_say_is_derived() -> None:
    """It had one output; in process, nothing is derived, and so nothing slows the answer."""

    early = {
        "backend": "vllm",
        "input": tensors("text_input:STRING stream:BOOL sampling_parameters:STRING"),
        "output": tensors("text_output:STRING"),
    }
    derived = {"finish_reason", "prompt_tokens", "completion_tokens", "prompt"}
    for config, expected in ((early, derived), (NVIDIA_VLLM, set()), (INPROCESS, set())):
        contract = select_contracts(config, vocabulary=Letters()).generation
        assert contract is not None
        assert contract.derives == expected


@pytest.mark.parametrize("name", NAMES)
def test_an_operator_may_choose(name: str) -> None:
    """Whatever the config looks like; a name that there is none of is refused."""

    config = {
        "input": [
            *tensors("text_input:STRING"),
            *({**each, "optional": True} for each in tensors("embedding_request:STRING n:INT32")),
        ],
        "output": tensors("text_output:STRING"),
    }
    chosen = select_contracts(config, options=ContractOptions(name=name))
    assert (chosen.name, chosen.reason) == (name, "The model's options set it.")
    with pytest.raises(ModelUnavailable, match="unknown contract 'vlm'"):
        select_contracts(config, options=ContractOptions(name="vlm"))
