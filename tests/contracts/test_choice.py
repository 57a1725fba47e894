"""Which contract a config gives a model."""

from collections.abc import Collection
from typing import Any

import pytest

from openai_frontend.contracts.choice import choose
from openai_frontend.errors import ModelUnavailable
from tests.contracts.recorded import INPROCESS, NVIDIA_VLLM, tensors


@pytest.mark.parametrize(
    ("config", "tasks", "expected"),
    [
        (NVIDIA_VLLM, None, ("vllm", {"generation", "embedding"})),
        (INPROCESS, ["generate"], ("vllm", {"generation"})),
        (INPROCESS, ["embed"], ("embeddings", {"embedding"})),
        (INPROCESS, ["embed", "score"], ("embeddings", {"embedding", "score"})),
    ],
)
def test_the_tensors_and_the_engine_choose(
    config: dict[str, Any], tasks: Collection[str] | None, expected: tuple[str, set[str]]
) -> None:
    """A model has the contracts that its tensors allow and its engine says it serves."""

    chosen = choose(config, tasks=tasks)

    kinds = {kind for kind in ("generation", "embedding", "score") if getattr(chosen, kind)}
    assert (chosen.name, kinds) == expected


def test_a_model_of_other_tensors_has_none() -> None:
    """Tensors that no request of ours has make a model that cannot be served here, with reason."""

    with pytest.raises(ModelUnavailable, match="no request here"):
        choose({"input": tensors("IMAGE:FP32"), "output": tensors("CLASS:FP32")})
