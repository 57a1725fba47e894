"""The media that a model takes, by its files in Hugging Face's format."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from openai_frontend.errors import ModelUnavailable
from openai_frontend.media.modalities import TranscriptionSupport

# Members of config.json of models that see
_VISION = {"vision_config", "img_processor", "vision_tower", "mm_vision_tower", "visual"}
_AUDIO = {"audio_config", "audio_processor"}  # of models that accept audio, but Whisper


def has_vision(folder: Path) -> bool:
    """Whether the config of a Hugging Face model has a part for images."""
    return bool(_VISION & read_json(folder, "config.json").keys())


def has_audio(folder: Path) -> bool:
    """Whether the config of a Hugging Face model has a part for audio in prompts."""
    return bool(_AUDIO & read_json(folder, "config.json").keys())


def transcription(folder: Path) -> TranscriptionSupport | None:
    """Transcription support of a Whisper model; None for other models."""
    config = read_json(folder, "config.json")
    if config.get("model_type") != "whisper":
        return None
    processor = read_json(folder, "processor_config.json")
    features = processor.get("feature_extractor") or read_mapping(
        folder, "preprocessor_config.json", json.loads
    )
    generation = read_json(folder, "generation_config.json")
    if features is None:
        raise ModelUnavailable(f"{folder / 'preprocessor_config.json'} does not exist")
    multilingual = generation.get("is_multilingual", True)
    languages = generation.get("lang_to_id", {}) if multilingual else {}
    return TranscriptionSupport(
        sample_rate=features.get("sampling_rate", 16_000),
        window_seconds=float(features.get("chunk_length", 30)),
        languages=sorted(token.strip("<|>") for token in languages),
        timestamps="no_timestamps_token_id" in generation,
        translation=bool(languages),
    )


def read_json(folder: Path | None, name: str) -> Mapping[str, Any]:
    """Empty if the file does not exist. Raises ModelUnavailable if it cannot be read."""
    return read_mapping(folder, name, json.loads) or {}


def read_mapping(
    folder: Path | None, name: str, parse: Callable[[str], Any]
) -> Mapping[str, Any] | None:
    """None if the file does not exist. Raises ModelUnavailable if it cannot be read."""
    if folder is None:
        return None
    path = folder / name
    try:
        content = parse(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelUnavailable(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ModelUnavailable(f"{path}: not a mapping of names to values")
    return content
