"""The API's description of a model."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from openai_frontend.models.model_card import ModelCard
from openai_frontend.serving.request.audio import AudioLimits
from openai_frontend.serving.request.images import ImageLimits
from schemas.models import Capabilities, LoadStatus, Modality, Model, TrainedContext

# Modality -> the capabilities that take it, or return it
_INPUTS: Mapping[Modality, tuple[str, ...]] = {
    "image": ("images",),
    "audio": ("audio", "transcription"),
}
_WITHOUT_TEXT = {each for of in _INPUTS.values() for each in of}  # all others take text
_OUTPUTS: Mapping[Modality, tuple[str, ...]] = {
    "text": ("completions", "chat", "transcription"),
    "audio": ("speech",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaLimits:
    """The server's limits on media, of which each model's description has a part."""

    images: ImageLimits
    audio: AudioLimits


def model_of(card: ModelCard, limits: MediaLimits) -> Model:
    """A model with its limits, abilities and state."""
    facts, audio = card.facts, limits.audio
    context = facts.max_model_len
    text: list[Modality] = ["text"] if card.capabilities - _WITHOUT_TEXT else []
    return Model(
        id=card.name,
        created=card.created,
        owned_by=facts.owned_by,
        root=card.root,
        parent=card.parent,
        max_model_len=context,
        context_length=context,
        context_window=context,
        max_output_tokens=card.max_output_tokens,
        meta=TrainedContext(n_ctx_train=context),
        status=LoadStatus(value=card.present if card.ready else card.absent),
        input_modalities=[*text, *_modalities(_INPUTS, card.capabilities)],
        output_modalities=_modalities(_OUTPUTS, card.capabilities),
        capabilities=Capabilities(
            **{name: name in card.capabilities for name in Capabilities.model_fields}
        ),
        images=None if facts.images is None else limits.images.of_model(facts.images),
        input_audio=None if facts.audio is None else audio.in_chats(facts.audio),
        audio=None if facts.transcription is None else audio.of_model(facts.transcription),
        description=facts.description,
        limitations=list(facts.limitations) or None,
        ready=card.ready,
        error=card.error,
    )


def models_of(cards: Iterable[ModelCard], limits: MediaLimits) -> list[Model]:
    """The models in their order. The adapters of a base differ only in names, so the others copy
    the first: describing a thousand would hold the event loop for 30 ms.
    """
    models: list[Model] = []
    adapters: dict[str, Model] = {}  # the first of each base
    for card in cards:
        base = card.parent
        if base is not None and base in adapters:
            names = {"id": card.name, "root": card.root}
            models.append(adapters[base].model_copy(update=names))
            continue
        models.append(model_of(card, limits))
        if base is not None:
            adapters[base] = models[-1]
    return models


def _modalities(
    table: Mapping[Modality, tuple[str, ...]], capabilities: frozenset[str]
) -> list[Modality]:
    return [modality for modality, of in table.items() if capabilities.intersection(of)]
