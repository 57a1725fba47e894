"""Reads a model's files: tokenizer, context length and media of other backends' models, prompt
tables.

Reads the files that the backends themselves read; runs nothing.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy

from openai_frontend.config import strict_yaml
from openai_frontend.errors import ModelUnavailable
from openai_frontend.media.hugging_face import has_vision, read_json, read_mapping
from openai_frontend.media.modalities import ImageSupport
from openai_frontend.model_facts import OTHER_BACKEND, ModelFacts

logger = logging.getLogger(__name__)

_FP32 = "TYPE_FP32"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """The files of one model."""

    config: Mapping[str, Any]  # Triton's model config as JSON
    folder: Path | None  # of the version that serves; None if not in a repository


_FINGERPRINT_BYTES = 1024 * 1024

Look = Callable[[str], ModelSource | None]  # by model name; None if the model does not exist

# The models that TensorRT-LLM's BLS model calls; only the engine's name is configurable
_BLS_ENGINE = "tensorrt_llm_model_name"
_BLS_AROUND = ("preprocessing", "postprocessing")
_BLS_ENCODERS = "multimodal_encoders_name"  # without it, the BLS model drops images

# TensorRT-LLM's kinds of vision models whose preprocessing takes URLs. The last two apply their
# chat template themselves, for one image.
_TENSORRT_LLM_IMAGES = {
    "mllama": ImageSupport(),
    "pixtral": ImageSupport(),
    "qwen2_vl": ImageSupport(max_per_request=1, takes_question=True),
    "llava_onevision": ImageSupport(max_per_request=1, takes_question=True, needs_table_id=True),
}


def read_facts(source: ModelSource, look: Look) -> ModelFacts:
    """Read the facts of a model; `look` finds its composing models.

    Raises ModelUnavailable with the path of a file that cannot be read.
    """
    if source.config.get("backend") == "vllm":
        return _of_vllm(source)
    arguments = read_mapping(source.folder, "model.yaml", strict_yaml.parse)
    if arguments is not None:
        return _of_llm_api(arguments)
    members = [source, *filter(None, map(look, composing_models(source.config)))]
    folder = _first(_parameter_folder(each, "tokenizer_dir") for each in members)
    return replace(
        OTHER_BACKEND,
        tokenizer=None if folder is None else str(folder),
        max_model_len=_first(_engine_length(each) for each in members),
        images=_tensorrt_llm_images(source, members),
        labels=_labels(source),
    )


def _labels(source: ModelSource) -> tuple[str, ...] | None:
    """The labels of the only output of FP32 numbers that has a file of them: one on each line.

    Triton looks for the file beside config.pbtxt. None if it cannot be read: the model may do
    without them, or its options have them.
    """
    numbers = (each for each in source.config.get("output", ()) if each["data_type"] == _FP32)
    names = {each.get("label_filename") for each in numbers} - {None, ""}
    if len(names) != 1 or source.folder is None:
        return None
    path = source.folder.parent / str(names.pop())
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        logger.warning("no labels: %s: %s", path, error.strerror)
        return None
    return tuple(line.rstrip("\r") for line in text.rstrip().split("\n"))  # as Triton splits


def fingerprint(source: ModelSource) -> str:
    """A hash of the config and of each file's path, size and first MiB: the same on all servers
    that load the same files, however large they are.
    """
    digest = hashlib.sha256(json.dumps(source.config, sort_keys=True).encode())
    if source.folder is None:
        return digest.hexdigest()
    for path in sorted(source.folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(source.folder)}/{path.stat().st_size}/".encode())
            with path.open("rb") as file:
                digest.update(file.read(_FINGERPRINT_BYTES))
    return digest.hexdigest()


def composing_models(config: Mapping[str, Any]) -> list[str]:
    """The composing models of an ensemble or of TensorRT-LLM's BLS model; empty for others."""
    steps = config.get("ensemble_scheduling", {}).get("step", ())
    engine = parameter(config, _BLS_ENGINE)
    called = [*_BLS_AROUND, engine] if engine else []
    return list(dict.fromkeys([*(step["model_name"] for step in steps), *called]))


def model_folder(name: str, repositories: Sequence[Path]) -> Path | None:
    """The folder of a model in Triton's index; None if it was loaded from memory."""
    folders = (repository / name for repository in repositories)
    return next((folder for folder in folders if folder.is_dir()), None)


def _of_vllm(source: ModelSource) -> ModelFacts:
    """Read `model.json` of NVIDIA's vLLM backend: vLLM's engine arguments."""
    arguments = read_json(source.folder, "model.json")
    facts = _of_hugging_face(
        arguments.get("tokenizer") or arguments.get("model"), arguments.get("max_model_len")
    )
    weights = arguments.get("model")
    sees = isinstance(weights, str) and has_vision(Path(weights))
    return replace(facts, images=ImageSupport()) if sees else facts


def _of_llm_api(arguments: Mapping[str, Any]) -> ModelFacts:
    """Read `model.yaml` of TensorRT-LLM's LLM-API model: the arguments of its `LLM`."""
    facts = _of_hugging_face(
        arguments.get("tokenizer") or arguments.get("model"), arguments.get("max_seq_len")
    )
    processors = arguments.get("logits_post_processors")
    names = tuple(map(str, processors)) if isinstance(processors, dict) else ()
    facts = replace(facts, logits_processors=names)
    said = arguments.get("triton_config")
    sees = isinstance(said, dict) and said.get("multimodal") is True  # else it drops them
    return replace(facts, images=ImageSupport(takes_question=True)) if sees else facts


def _tensorrt_llm_images(
    source: ModelSource, members: Sequence[ModelSource]
) -> ImageSupport | None:
    """Image support of a pipeline's vision model; None without one, or for an unknown kind."""
    if parameter(source.config, _BLS_ENGINE) and not parameter(source.config, _BLS_ENCODERS):
        return None
    folder = _first(_parameter_folder(each, "multimodal_model_path") for each in members)
    built = read_json(folder, "config.json").get("builder_config")
    kind = built.get("model_type") if isinstance(built, dict) else None
    return _TENSORRT_LLM_IMAGES.get(str(kind))


def _of_hugging_face(named: Any, said: Any) -> ModelFacts:
    if not isinstance(named, str):
        return replace(OTHER_BACKEND, max_model_len=_length(said))
    folder = Path(named)
    config = read_json(folder, "config.json")
    length = _length(said) or _length(config.get("max_position_embeddings"))
    return replace(OTHER_BACKEND, tokenizer=str(folder), max_model_len=length)


def parameter(config: Mapping[str, Any], name: str) -> str | None:
    """The parameter's value; None if unset or still a placeholder ("${...}")."""
    value = config.get("parameters", {}).get(name, {}).get("string_value")
    return value if isinstance(value, str) and value and not value.startswith("${") else None


def _parameter_folder(source: ModelSource, name: str) -> Path | None:
    value = parameter(source.config, name)
    return None if value is None else Path(value)


def _engine_length(source: ModelSource) -> int | None:
    """The context length that a TensorRT-LLM engine was built for."""
    folder = _parameter_folder(source, "gpt_model_path")
    build = read_json(folder, "config.json").get("build_config")
    return _length(build.get("max_seq_len")) if isinstance(build, dict) else None


def _length(value: Any) -> int | None:
    number = isinstance(value, int) and not isinstance(value, bool)
    return value if number and value > 0 else None


def _first(found: Any) -> Any:
    return next((each for each in found if each is not None), None)


def load_prompt_tables(files: Mapping[str, str]) -> dict[str, Any]:
    """Map TensorRT-LLM's prompt embedding tables: name -> array [tokens, hidden size].

    The data stays on disk until it is sent. Raises ModelUnavailable with the invalid file.
    """
    return {name: _table(name, Path(path)) for name, path in files.items()}


def _table(name: str, path: Path) -> Any:
    try:
        array: numpy.ndarray[Any, Any] = numpy.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise ModelUnavailable(f"its prompt table '{name}': {path}: {error}") from error
    if array.ndim == 3 and array.shape[0] == 1:
        array = array[0]
    if array.ndim != 2:
        shape = list(array.shape)
        raise ModelUnavailable(
            f"its prompt table '{name}' has shape {shape}, not [tokens, hidden size]"
        )
    return array
