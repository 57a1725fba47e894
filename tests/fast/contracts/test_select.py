"""The selection of contracts by a model's config."""

from collections.abc import Collection
from typing import Any

import pytest

from openai_frontend.contracts.select import NAMES, ContractOptions, select_contracts
from openai_frontend.errors import ModelUnavailable
from tests.fast.contracts.recorded import (
    BLS,
    ENSEMBLE,
    INPROCESS,
    LLMAPI,
    NVIDIA_VLLM,
    Letters,
    tensors,
)


@pytest.mark.parametrize(
    ("config", "tasks", "expected"),
    [
        (NVIDIA_VLLM, None, ("vllm", {"generation", "embedding"})),
        (INPROCESS, ["generate"], ("vllm", {"generation"})),
        (INPROCESS, ["embed"], ("embeddings", {"embedding"})),
        (INPROCESS, ["embed", "score"], ("embeddings", {"embedding", "score"})),
        (INPROCESS, ["score", "classify"], ("embeddings", {"score", "classification"})),
        (ENSEMBLE, None, ("tensorrt_llm", {"generation"})),
        (BLS, None, ("tensorrt_llm", {"generation"})),
        (LLMAPI, None, ("llmapi", {"generation"})),
    ],
)
def test_tensors_and_engine_tasks_select_contracts(
    config: dict[str, Any], tasks: Collection[str] | None, expected: tuple[str, set[str]]
) -> None:
    """A model gets the contracts that its tensors allow and whose tasks its engine reports."""

    chosen = select_contracts(config, tasks=tasks, options=ContractOptions(labels=["a", "b"]))

    every = ("generation", "embedding", "score", "classification")
    kinds = {kind for kind in every if getattr(chosen, kind)}
    assert (chosen.name, kinds) == expected


def test_unknown_tensors_are_rejected() -> None:
    """A model whose tensors match no endpoint is unavailable, with the reason."""

    with pytest.raises(ModelUnavailable, match="no supported endpoint"):
        select_contracts({"input": tensors("IMAGE:FP32"), "output": tensors("CLASS:FP32")})


def test_old_backend_releases_need_derived_outputs() -> None:
    """Old releases had one output. In process, nothing is derived, because it would slow the
    answer.
    """

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
def test_option_overrides_the_config(name: str) -> None:
    """Whatever the config looks like. Unknown names are rejected, of contracts and of fields."""

    config = {
        "input": [
            *tensors("text_input:STRING"),
            *(
                {**each, "optional": True}
                for each in tensors(
                    "embedding_request:STRING n:INT32 TEXT_PREFIX:STRING WAV:FP32 WAV_LENS:INT32"
                )
            ),
        ],
        "output": tensors("text_output:STRING TRANSCRIPTS:STRING waveform:FP32"),
        "parameters": {"sample_rate": {"string_value": "24000"}},
    }
    chosen = select_contracts(config, options=ContractOptions(name=name, labels=["a"]))
    assert (chosen.name, chosen.reason) == (name, "The model's options set it.")
    if (contract := chosen.generation) is not None:
        assert contract.supports("temperature") in (True, False)
        with pytest.raises(ValueError, match="'temprature' is not a field of requests to models"):
            contract.supports("temprature")
    with pytest.raises(ModelUnavailable, match="unknown contract 'vlm'"):
        select_contracts(config, options=ContractOptions(name="vlm"))
