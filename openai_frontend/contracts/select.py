"""Selects a model's tensor contract: by the operator's option or by its config. Reads no files."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from openai_frontend.contracts import Contract, Vocabulary, ZeroTokens, declared_names
from openai_frontend.contracts.classification import ClassificationContract, is_classifier
from openai_frontend.contracts.derived_outputs import DerivedOutputs
from openai_frontend.contracts.embeddings import GenericEmbeddingContract, is_embedding_model
from openai_frontend.contracts.llmapi import llmapi
from openai_frontend.contracts.pooling import EmbeddingContract, ScoreContract
from openai_frontend.contracts.python import python
from openai_frontend.contracts.speech import SpeechContract, text_input, waveform_output
from openai_frontend.contracts.tensor_fields import TensorFields
from openai_frontend.contracts.tensorrt_llm import tensorrt_llm
from openai_frontend.contracts.vllm import VLLMContract
from openai_frontend.contracts.whisper import INPUTS, OUTPUT, SUPPORT, WhisperContract
from openai_frontend.errors import ModelUnavailable
from openai_frontend.media.modalities import AudioSupport, ImageSupport, TranscriptionSupport
from openai_frontend.pooling import TOKEN_TASKS

NAMES = (
    "vllm",
    "tensorrt_llm",
    "llmapi",
    "python",
    "embeddings",
    "classification",
    "whisper",
    "speech",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractOptions:
    """An operator's options for a model's tensors."""

    name: str | None = None  # one of NAMES; None: selected by the config
    tensors: Mapping[str, str] = field(default_factory=dict)  # our name -> the model's
    # name -> numpy array [tokens, hidden size]: prompt embeddings that requests can name
    prompt_embedding_tables: Mapping[str, Any] = field(default_factory=dict)
    images: ImageSupport | None = None  # what the engine or the model's files say; None: no images
    audio: AudioSupport | None = None  # what the engine says; None: prompts contain no audio
    transcription: TranscriptionSupport | None = None  # what the engine says; None: no speech
    logits_processors: Collection[str] | None = None  # that requests may name; None: any
    labels: Sequence[str] | None = None  # of a classifier; None: the model has no labels


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedContracts:
    """A model's contracts, and the reason for the selection."""

    name: str
    reason: str  # one sentence
    generation: Contract | None = None
    embedding: EmbeddingContract | GenericEmbeddingContract | None = None
    classification: EmbeddingContract | ClassificationContract | None = None
    sparse: EmbeddingContract | GenericEmbeddingContract | None = None
    tokens: EmbeddingContract | None = None  # makes a vector for each token
    token_tasks: frozenset[str] = frozenset()  # of `tokens`
    score: ScoreContract | None = None
    speech: SpeechContract | None = None
    transcription: TranscriptionSupport | None = None  # `generation` transcribes audio


_NO_OPTIONS = ContractOptions()
_TASKS = frozenset({"generate", "embed", "score"})  # of backends that do not name theirs


class _Factory(Protocol):
    """Creates the contract of a model with one tensor for each field."""

    def __call__(
        self,
        config: Mapping[str, Any],
        *,
        tensors: Mapping[str, str],
        decoupled: bool,
        vocabulary: Vocabulary | None,
        images: ImageSupport | None,
    ) -> TensorFields: ...


_FACTORIES: Mapping[str, _Factory] = {
    "tensorrt_llm": tensorrt_llm,
    "llmapi": llmapi,
    "python": python,
}


def select_contracts(
    config: Mapping[str, Any],
    *,
    tasks: Collection[str] | None = None,
    options: ContractOptions = _NO_OPTIONS,
    decoupled: bool | None = None,
    vocabulary: Vocabulary | None = None,
) -> SelectedContracts:
    """The contracts for a model with this config, as completed by Triton.

    `tasks`: what an in-process engine reports that it does; None: all that the tensors allow.
    `decoupled`: whether it sends any number of responses; None: as in its config.
    `vocabulary`: that of its tokenizer, if it has one.
    Raises ModelUnavailable with the reason if no contract fits.
    """
    name, reason = _name(config, options)
    if name == "embeddings" and "embedding_request" not in declared_names(config, "input"):
        return _select_vectors(config, name, reason, options)
    if name == "classification":
        scores = ClassificationContract(config, options.tensors, options.labels)
        return SelectedContracts(name=name, reason=reason, classification=scores)
    if name in ("vllm", "embeddings"):
        return _select_vllm(config, name, reason, tasks, vocabulary, options)
    if decoupled is None:
        decoupled = bool(config.get("model_transaction_policy", {}).get("decoupled", False))
    if name == "speech":
        speech = SpeechContract(config, options.tensors, decoupled=decoupled)
        return SelectedContracts(name=name, reason=reason, speech=speech)
    if name == "whisper":
        whisper = DerivedOutputs(WhisperContract(config, decoupled=decoupled), vocabulary)
        return SelectedContracts(
            name=name, reason=reason, generation=whisper, transcription=SUPPORT
        )
    make = _FACTORIES[name]
    if name == "tensorrt_llm":
        make = partial(tensorrt_llm, prompt_embedding_tables=options.prompt_embedding_tables)
    elif name == "llmapi":
        make = partial(llmapi, logits_processors=options.logits_processors)
    contract = make(
        config,
        tensors=options.tensors,
        decoupled=decoupled,
        vocabulary=vocabulary,
        images=options.images,
    )
    generation = ZeroTokens(DerivedOutputs(contract, vocabulary))
    return SelectedContracts(name=name, reason=reason, generation=generation)


def _select_vectors(
    config: Mapping[str, Any], name: str, reason: str, options: ContractOptions
) -> SelectedContracts:
    vectors = GenericEmbeddingContract(config, options.tensors)
    return SelectedContracts(
        name=name,
        reason=reason,
        embedding=vectors if vectors.is_dense else None,
        sparse=vectors if vectors.is_sparse else None,
    )


_ALL_DETAILS = ("auto", "low", "high", "original")


def image_support(chosen: SelectedContracts, reported: ImageSupport | None) -> ImageSupport | None:
    """The model's image support, limited by what its engine or files report."""
    contract = chosen.generation
    if reported is None or (contract is not None and not contract.supports("images")):
        return None
    lengths = {reported.max_per_request, None if contract is None else contract.max_images}
    inprocess = contract is None or contract.supports("image_detail")
    return replace(
        reported,
        max_per_request=min((each for each in lengths if each is not None), default=None),
        details=_ALL_DETAILS if inprocess else reported.details,
    )


def audio_support(chosen: SelectedContracts, reported: AudioSupport | None) -> AudioSupport | None:
    """The model's audio support, limited by what its engine reports."""
    contract = chosen.generation
    return reported if contract is not None and contract.supports("audio_files") else None


def takes_text(chosen: SelectedContracts) -> bool:
    """Whether the model tokenizes prompts itself."""
    contract = chosen.generation
    return contract is not None and not contract.supports("prompt_token_ids")


def _name(config: Mapping[str, Any], options: ContractOptions) -> tuple[str, str]:
    """The contract's name and the reason for it."""
    if options.name is not None:
        if options.name not in NAMES:
            raise ModelUnavailable(
                f"unknown contract '{options.name}'; use one of {', '.join(NAMES)}"
            )
        return options.name, "The model's options set it."
    if options.labels is not None and not _is_of_vllm(config) and _has_only_scores(config, options):
        return "classification", _LABELS_REASON
    named = frozenset(options.tensors)
    inputs = declared_names(config, "input") | named
    outputs = declared_names(config, "output") | named
    for name, (matches, reason) in _RULES.items():
        if matches(config, inputs, outputs):
            return "embeddings" if name == "vectors" else name, reason
    if "input_ids" in inputs:
        raise ModelUnavailable("it takes token ids; send requests to its ensemble or BLS model")
    if is_classifier(config):
        raise ModelUnavailable(_AMBIGUOUS)
    raise ModelUnavailable("no supported endpoint matches its inputs and outputs")


_Rule = Callable[[Mapping[str, Any], frozenset[str], frozenset[str]], bool]

_LABELS_REASON = "It has labels, so its vector of FP32 numbers is their scores."
_AMBIGUOUS = (
    "its vector may be an embedding or the scores of classes: set `contract: embeddings`, or give "
    "it labels by `label_filename` of the output or by `labels` in openai_frontend.yaml"
)
_VLLM_REASON = "It takes sampling parameters as vLLM's backends do."
_POOLING_REASON = "It takes embedding and score requests as vLLM's backends do."

# Contract -> its rule and the reason in words; the first match is selected
_RULES: Mapping[str, tuple[_Rule, str]] = {
    "whisper": (
        lambda config, inputs, outputs: inputs >= INPUTS and OUTPUT in outputs,
        "Its tensors are those of TensorRT-LLM's whisper_bls.",
    ),
    "vllm": (
        lambda config, inputs, outputs: (
            (_is_of_vllm(config) or "sampling_parameters" in inputs)
            and bool(outputs & {"text_output", "embedding", "score"})
        ),
        _VLLM_REASON,
    ),
    "llmapi": (
        lambda config, inputs, outputs: (
            "text_output" in outputs and any(name.startswith("sampling_param_") for name in inputs)
        ),
        "Its inputs are named sampling_param_..., as in TensorRT-LLM's LLM-API model.",
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
        _POOLING_REASON,
    ),
    "speech": (
        lambda config, inputs, outputs: (
            "text_output" not in outputs
            and text_input(config, {}) is not None
            and waveform_output(config, {}) is not None
        ),
        "The names of an input and an output identify its text and its waveform.",
    ),
    "vectors": (
        lambda config, inputs, outputs: is_embedding_model(config),
        "The names of an input and an output identify its prompt and its vector.",
    ),
    "python": (
        lambda config, inputs, outputs: (
            ("text_input" in inputs or _text_count(config, "input") == 1)
            and ("text_output" in outputs or _text_count(config, "output") == 1)
        ),
        "Its prompt and its answer are identified by their names, or are the only texts.",
    ),
}


def _has_only_scores(config: Mapping[str, Any], options: ContractOptions) -> bool:
    """Whether labels make it a classifier: nothing says that it has vectors or texts too."""
    vectors = [each for each in config.get("output", ()) if each["data_type"] == "TYPE_FP32"]
    return (
        is_classifier(config)
        and options.tensors.keys() <= {"text_input", "scores"}
        and (len(vectors) == 1 or not is_embedding_model(config))
    )


def _is_of_vllm(config: Mapping[str, Any]) -> bool:
    """Whether NVIDIA's backend of vLLM or one of our engines runs the model."""
    return config.get("backend") in ("vllm", "inprocess")


def _text_count(config: Mapping[str, Any], side: str) -> int:
    return sum(tensor["data_type"] == "TYPE_STRING" for tensor in config.get(side, ()))


def _select_vllm(
    config: Mapping[str, Any],
    name: str,
    reason: str,
    tasks: Collection[str] | None,
    vocabulary: Vocabulary | None,
    options: ContractOptions,
) -> SelectedContracts:
    """The contracts of vLLM's backends, NVIDIA's and ours, for any of the four tasks."""
    inputs, outputs = declared_names(config, "input"), declared_names(config, "output")
    allowed = _TASKS if tasks is None else _TASKS & set(tasks)
    generates = "generate" in allowed and "text_output" in outputs and name == "vllm"
    embeds = "embed" in allowed and "embedding_request" in inputs
    scores = "score" in allowed and "score_request" in inputs and "score" in outputs
    classifies = "classify" in (tasks or ()) and "embedding_request" in inputs
    if classifies and options.labels is None:
        if not scores:
            message = "its engine reports no labels; set `labels` in openai_frontend.yaml"
            raise ModelUnavailable(message)
        classifies = False
    token_tasks = TOKEN_TASKS & set(tasks or ()) if "embedding_request" in inputs else frozenset()
    if not (generates or embeds or scores or classifies or token_tasks):
        raise ModelUnavailable("no supported endpoint matches its inputs and outputs")
    return SelectedContracts(
        name="vllm" if generates else "embeddings",
        reason=reason if generates or reason != _VLLM_REASON else _POOLING_REASON,
        generation=_vllm_generation(config, vocabulary, options) if generates else None,
        transcription=options.transcription if generates and "audio" in inputs else None,
        embedding=EmbeddingContract(config) if embeds else None,
        classification=EmbeddingContract(config) if classifies else None,
        # Only BGE-M3's architecture has both: its tokens have weights, not classes
        sparse=EmbeddingContract(config) if embeds and "token_classify" in token_tasks else None,
        tokens=EmbeddingContract(config) if token_tasks else None,
        token_tasks=frozenset[str](token_tasks),
        score=ScoreContract(config) if scores else None,
    )


def _vllm_generation(
    config: Mapping[str, Any], vocabulary: Vocabulary | None, options: ContractOptions
) -> Contract:
    inprocess = config.get("backend") == "inprocess"  # it takes token ids
    media = {
        "images": options.images,
        "audio_files": options.audio,
        "audio": options.transcription,
    }
    contract = VLLMContract(
        config,
        None if inprocess else vocabulary,
        logprob_arrays=inprocess and vocabulary is not None,
        takes=[name for name, taken in media.items() if taken is not None],
    )
    return ZeroTokens(DerivedOutputs(contract, vocabulary) if contract.derives else contract)
