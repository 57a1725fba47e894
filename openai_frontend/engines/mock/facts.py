"""The facts about a mock model: all come from its settings."""

from openai_frontend.engines.engine import KVTransferFacts, ModelFacts, ModelSpec
from openai_frontend.engines.mock.settings import MockSettings
from openai_frontend.media.modalities import AudioSupport, ImageSupport, TranscriptionSupport


def mock_facts(settings: MockSettings, model: ModelSpec) -> ModelFacts:
    return ModelFacts(
        max_model_len=settings.max_model_len,
        tokenizer=settings.tokenizer_folder(model),
        tasks=settings.tasks,
        dimensions=settings.dimensions,
        matryoshka=True,
        labels=settings.labels or None,
        description="a mock that returns configured tokens",
        max_lora_rank=settings.max_lora_rank,
        kv_transfer=_kv_transfer(settings),
        images=_image_support(settings),
        audio=_audio_support(settings),
        transcription=_transcription_support(settings),
        sleep_obstacle=settings.sleep_obstacle,
    )


def _kv_transfer(settings: MockSettings) -> KVTransferFacts | None:
    if settings.kv_role is None:
        return None
    return KVTransferFacts(
        role=settings.kv_role,
        lease_s=settings.kv_lease_s,
        block_size=settings.block_size,
        blocks=settings.prefix_cache_blocks,
    )


def _image_support(settings: MockSettings) -> ImageSupport | None:
    if not settings.images_per_prompt:
        return None
    return ImageSupport(
        max_per_request=settings.images_per_prompt,
        max_tokens_per_image=settings.tokens_per_image,
    )


def _audio_support(settings: MockSettings) -> AudioSupport | None:
    if not settings.audio_files_per_prompt:
        return None
    return AudioSupport(
        max_per_request=settings.audio_files_per_prompt,
        max_tokens_per_audio=settings.tokens_per_audio,
    )


def _transcription_support(settings: MockSettings) -> TranscriptionSupport | None:
    if not settings.audio_window_s:
        return None
    return TranscriptionSupport(
        sample_rate=16_000,
        window_seconds=settings.audio_window_s,
        languages=("en", "de"),
        timestamps=True,
        translation=True,
    )
