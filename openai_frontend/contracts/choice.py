"""Which tensor contract a model has: an operator says so, or its config does. Reads no file."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from openai_frontend.contracts.contract import Contract, declared_names
from openai_frontend.contracts.pooling import EmbeddingContract, ScoreContract
from openai_frontend.contracts.prompt_only import PromptOnly
from openai_frontend.contracts.vllm import VLLMContract
from openai_frontend.errors import ModelUnavailable

NAMES = ("vllm", "tensorrt_llm", "llmapi", "python", "embeddings")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractOptions:
    """What an operator says of a model's tensors."""

    name: str | None = None  # one of NAMES; None: chosen from the config
    tensors: Mapping[str, str] = field(default_factory=dict)  # our name -> the model's


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A model's contracts, and why they are its own."""

    name: str
    because: str  # one sentence
    generation: Contract | None = None
    embedding: EmbeddingContract | None = None
    score: ScoreContract | None = None


_SAID_NOTHING = ContractOptions()


def choose(
    config: Mapping[str, Any],
    *,
    tasks: Collection[str] | None = None,
    options: ContractOptions = _SAID_NOTHING,
    count_tokens: Callable[[str], int] | None = None,
) -> Chosen:
    """The contracts of a model with this config, which is Triton's completed one.

    `tasks` is what an in-process engine says that it does; None: all that the tensors allow.
    Raises ModelUnavailable with the reason where no contract fits.
    """
    inputs, outputs = declared_names(config, "input"), declared_names(config, "output")
    allowed = {"generate", "embed", "score"} if tasks is None else set(tasks)
    generates = "generate" in allowed and "text_output" in outputs
    embeds = "embed" in allowed and "embedding_request" in inputs
    scores = "score" in allowed and "score_request" in inputs and "score" in outputs
    if not (generates or embeds or scores):
        raise ModelUnavailable("its tensors are for no request here")
    return Chosen(
        name="vllm" if generates else "embeddings",
        because=f"Its backend is {config.get('backend')!r}.",
        generation=PromptOnly(VLLMContract(config)) if generates else None,
        embedding=EmbeddingContract(config) if embeds else None,
        score=ScoreContract(config) if scores else None,
    )
