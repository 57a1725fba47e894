"""Selects a model's tensor contract: by the operator's option or by its config. Reads no files."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from openai_frontend.contracts.contract import Contract, Vocabulary, declared_names
from openai_frontend.contracts.derived_outputs import DerivedOutputs
from openai_frontend.contracts.embedding import GenericEmbeddingContract, is_embedding_model
from openai_frontend.contracts.llmapi import llmapi
from openai_frontend.contracts.pooling import EmbeddingContract, ScoreContract
from openai_frontend.contracts.python import python
from openai_frontend.contracts.tensor_fields import TensorFields
from openai_frontend.contracts.tensorrt_llm import tensorrt_llm
from openai_frontend.contracts.vllm import VLLMContract
from openai_frontend.contracts.zero_tokens import ZeroTokens
from openai_frontend.errors import ModelUnavailable

NAMES = ("vllm", "tensorrt_llm", "llmapi", "python", "embeddings")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractOptions:
    """What an operator says of a model's tensors."""

    name: str | None = None  # one of NAMES; None: chosen from the config
    tensors: Mapping[str, str] = field(default_factory=dict)  # our name -> the model's
    # name -> numpy array [tokens, hidden size]: prompt embeddings that requests may ask for
    prompt_embedding_tables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedContracts:
    """A model's contracts, and why they are its own."""

    name: str
    reason: str  # one sentence
    generation: Contract | None = None
    embedding: EmbeddingContract | GenericEmbeddingContract | None = None
    score: ScoreContract | None = None


_SAID_NOTHING = ContractOptions()
_TASKS = frozenset({"generate", "embed", "score"})


class _Maker(Protocol):
    """Makes the contract of one model whose tensors stand one for each field."""

    def __call__(
        self,
        config: Mapping[str, Any],
        *,
        tensors: Mapping[str, str],
        decoupled: bool,
        vocabulary: Vocabulary | None,
    ) -> TensorFields: ...


_MAKERS: Mapping[str, _Maker] = {"tensorrt_llm": tensorrt_llm, "llmapi": llmapi, "python": python}


def select_contracts(
    config: Mapping[str, Any],
    *,
    tasks: Collection[str] | None = None,
    options: ContractOptions = _SAID_NOTHING,
    decoupled: bool | None = None,
    vocabulary: Vocabulary | None = None,
) -> SelectedContracts:
    """The contracts of a model with this config, which is Triton's completed one.

    `tasks` is what an in-process engine says that it does; None: all that the tensors allow.
    `decoupled`: whether it sends any number of responses; None: what its config says.
    `vocabulary` is that of its tokenizer, where there is one.
    Raises ModelUnavailable with the reason where no contract fits.
    """
    name, reason = _name(config, options)
    if name == "embeddings" and "embedding_request" not in declared_names(config, "input"):
        vectors = GenericEmbeddingContract(config, options.tensors)
        return SelectedContracts(name=name, reason=reason, embedding=vectors)
    if name in ("vllm", "embeddings"):
        return _of_vllm(config, name, reason, tasks, vocabulary)
    if decoupled is None:
        decoupled = bool(config.get("model_transaction_policy", {}).get("decoupled", False))
    make = _MAKERS[name]
    if name == "tensorrt_llm":
        make = partial(tensorrt_llm, prompt_embedding_tables=options.prompt_embedding_tables)
    contract = make(config, tensors=options.tensors, decoupled=decoupled, vocabulary=vocabulary)
    generation = ZeroTokens(DerivedOutputs(contract, vocabulary))
    return SelectedContracts(name=name, reason=reason, generation=generation)


def _name(config: Mapping[str, Any], options: ContractOptions) -> tuple[str, str]:
    """The name of the contract, and why it is this one."""
    if options.name is not None:
        if options.name not in NAMES:
            raise ModelUnavailable(f"there is no contract '{options.name}', only {NAMES}")
        return options.name, "The model's options say so."
    named = frozenset(options.tensors)
    inputs = declared_names(config, "input") | named
    outputs = declared_names(config, "output") | named
    for name, (sign, told) in _SIGNS.items():
        if sign(config, inputs, outputs):
            return "embeddings" if name == "vectors" else name, told
    if "input_ids" in inputs:
        raise ModelUnavailable(
            "it takes token ids: requests go to the ensemble or the BLS model before it"
        )
    raise ModelUnavailable("no request of the gateway fits its tensors")


_Sign = Callable[[Mapping[str, Any], frozenset[str], frozenset[str]], bool]

# Contract -> what shows it, and that in words; the first that fits
_SIGNS: Mapping[str, tuple[_Sign, str]] = {
    "vllm": (
        lambda config, inputs, outputs: (
            (config.get("backend") in ("vllm", "inprocess") or "sampling_parameters" in inputs)
            and bool(outputs & {"text_output", "embedding", "score"})
        ),
        "It takes its sampling parameters as vLLM's backends do.",
    ),
    "llmapi": (
        lambda config, inputs, outputs: (
            "text_output" in outputs and any(name.startswith("sampling_param_") for name in inputs)
        ),
        "Its inputs are named sampling_param_..., as those of TensorRT-LLM's LLM-API model.",
    ),
    "tensorrt_llm": (
        lambda config, inputs, outputs: (
            "text_output" in outputs
            and {"text_input", "max_tokens"} <= inputs
            and bool(inputs & {"stop_words", "bad_words", "beam_width"})
        ),
        "Its inputs are those of TensorRT-LLM's ensemble and BLS models.",
    ),
    "embeddings": (
        lambda config, inputs, outputs: "embedding_request" in inputs,
        "It takes requests for embeddings as vLLM's backends do.",
    ),
    "vectors": (
        lambda config, inputs, outputs: is_embedding_model(config),
        "An input is its prompt and an output its vector, by their names.",
    ),
    "python": (
        lambda config, inputs, outputs: (
            ("text_input" in inputs or _texts(config, "input") == 1)
            and ("text_output" in outputs or _texts(config, "output") == 1)
        ),
        "An input is its prompt and an output its answer, by their names or as the only texts.",
    ),
}


def _texts(config: Mapping[str, Any], side: str) -> int:
    return sum(tensor["data_type"] == "TYPE_STRING" for tensor in config.get(side, ()))


def _of_vllm(
    config: Mapping[str, Any],
    name: str,
    reason: str,
    tasks: Collection[str] | None,
    vocabulary: Vocabulary | None,
) -> SelectedContracts:
    """Of vLLM's backends, NVIDIA's and ours: any of the three tasks."""
    inputs, outputs = declared_names(config, "input"), declared_names(config, "output")
    allowed = _TASKS if tasks is None else _TASKS & set(tasks)
    generates = "generate" in allowed and "text_output" in outputs and name == "vllm"
    embeds = "embed" in allowed and "embedding_request" in inputs
    scores = "score" in allowed and "score_request" in inputs and "score" in outputs
    if not (generates or embeds or scores):
        raise ModelUnavailable("no request of the gateway fits its tensors")
    return SelectedContracts(
        name="vllm" if generates else "embeddings",
        reason=reason,
        generation=_of_text(config, vocabulary) if generates else None,
        embedding=EmbeddingContract(config) if embeds else None,
        score=ScoreContract(config) if scores else None,
    )


def _of_text(config: Mapping[str, Any], vocabulary: Vocabulary | None) -> Contract:
    inprocess = config.get("backend") == "inprocess"  # it gets token ids
    contract = VLLMContract(config, None if inprocess else vocabulary)
    return ZeroTokens(DerivedOutputs(contract, vocabulary) if contract.derives else contract)
