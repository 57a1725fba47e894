"""Facts about a model of vLLM: those that its files show, and those of the loaded engine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openai_frontend.engines.engine import ModelFacts, ModelSpec
from openai_frontend.engines.vllm import arguments, kv_transfer, sleep
from openai_frontend.engines.vllm.media.audio import PromptAudio
from openai_frontend.engines.vllm.media.prompts import PromptMedia
from openai_frontend.media import hugging_face
from openai_frontend.media.modalities import AudioSupport, ImageSupport

# Suffixes of architectures with one task; for others only vLLM decides
_TASKS = {
    "ForCausalLM": ("generate",),
    "LMHeadModel": ("generate",),
    "ForConditionalGeneration": ("generate",),
    "Model": ("embed", "token_embed"),
}
# Its second head has a weight for each token, of which sparse vectors are made
_BGE_M3 = "BgeM3EmbeddingModel"
_EMBEDS = ("embed", "token_embed")


def from_files(model: ModelSpec) -> ModelFacts:
    """Facts that need no vLLM. Files on a hub show none.

    Raises ModelUnavailable for files that cannot be read.
    """
    weights = _weights(model)
    here = weights if weights is not None and weights.is_dir() else None
    labels = _labels_in_files(weights) if "Classification" in _architecture(weights) else None
    return ModelFacts(
        max_model_len=model.arguments.get("max_model_len"),
        tasks=_tasks_of(_architecture(weights), model.arguments.get("runner"), labels),
        labels=labels,
        images=ImageSupport() if here and hugging_face.has_vision(here) else None,
        audio=AudioSupport() if here and hugging_face.has_audio(here) else None,
        transcription=None if weights is None else hugging_face.transcription(weights),
    )


def from_engine(
    model: ModelSpec,
    engine: Any,  # vLLM's AsyncLLM
    *,
    audio: PromptAudio | None,
    media: PromptMedia | None,
    limitations: Sequence[str],
) -> ModelFacts:
    """All facts about a loaded model."""
    config, lora = engine.model_config, engine.vllm_config.lora_config
    tasks, transfer = _tasks(config), kv_transfer.facts(engine)
    return ModelFacts(
        max_model_len=config.max_model_len,
        tokenizer=arguments.tokenizer_folder(config),
        tasks=tasks,
        owned_by="vllm",
        vocab_size=config.get_vocab_size(),
        dimensions=config.embedding_size if "embed" in tasks else None,
        matryoshka=config.is_matryoshka if "embed" in tasks else None,
        labels=_labels(config) if "classify" in tasks else None,
        description=model.parameters.get("description"),
        max_lora_rank=None if lora is None else lora.max_lora_rank,
        kv_transfer=transfer,
        images=None if media is None else media.images,
        audio=None if media is None else media.audio_files,
        transcription=None if audio is None else audio.support,
        sleep_obstacle=sleep.obstacle(config, transfers=transfer is not None),
        limitations=tuple(limitations),
    )


def _tasks(config: Any) -> tuple[str, ...]:
    """The tasks the model supports; a pooling model may support none."""
    if config.runner_type != "pooling":
        return ("generate",)
    architecture = config.architectures[0]
    if "ForTokenClassification" in architecture:
        return ("token_classify",)
    if config.score_type == "bi-encoder":
        return _embedding_tasks(architecture)
    if config.score_type == "late-interaction":
        return ("token_embed",)
    if config.score_type != "cross-encoder":
        return ()
    labels = _labels(config)
    count = getattr(config.hf_config, "num_labels", 0) if labels is None else len(labels)
    return _classifier_tasks(count)


def _classifier_tasks(labels: int) -> tuple[str, ...]:
    """A cross-encoder has one label, whose score it returns."""
    classifies = ("classify", "token_classify")
    return ("score", *classifies) if labels == 1 else classifies


def _embedding_tasks(architecture: str) -> tuple[str, ...]:
    return (*_EMBEDS, "token_classify") if architecture == _BGE_M3 else _EMBEDS


def _labels(config: Any) -> tuple[str, ...] | None:
    """The labels of a model's classes. Transformers names those that its files do not."""
    names = getattr(config.hf_config, "id2label", None)
    return tuple(str(names[at]) for at in sorted(names)) if names else None


def _labels_in_files(weights: Path | None) -> tuple[str, ...]:
    """The labels in config.json, in order; Transformers assumes two without any."""
    names = hugging_face.read_json(weights, "config.json").get("id2label")
    if not isinstance(names, dict) or not names:
        return ("LABEL_0", "LABEL_1")
    return tuple(str(names[at]) for at in sorted(names, key=_number))


def _number(key: str) -> int:
    return int(key) if key.isdecimal() else 0


def _tasks_of(
    architecture: str, runner: str | None, labels: tuple[str, ...] | None
) -> tuple[str, ...] | None:
    """The tasks of a model with this architecture; None if only vLLM knows them."""
    if labels is not None and architecture.endswith("ForSequenceClassification"):
        return _classifier_tasks(len(labels))
    if architecture.endswith("ForTokenClassification"):
        return ("token_classify",)
    if runner == "pooling" and "Classification" not in architecture:
        return _embedding_tasks(architecture)
    return next((tasks for end, tasks in _TASKS.items() if architecture.endswith(end)), None)


def _weights(model: ModelSpec) -> Path | None:
    """vLLM's argument `model`: a folder, or a name on a hub."""
    name = model.arguments.get("model")
    if not isinstance(name, str) or not name:
        return None
    return model.version_folder / name if name.startswith(".") else Path(name)


def _architecture(weights: Path | None) -> str:
    """The architecture in config.json; empty without the file."""
    names = hugging_face.read_json(weights, "config.json").get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""
