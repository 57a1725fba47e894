"""Checks whether a model could be loaded on this machine, without starting anything."""

import importlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openai_frontend.cli.model_directory import ModelDirectory
from openai_frontend.errors import ModelUnavailable
from openai_frontend.model_facts import ModelFacts
from openai_frontend.models.remote_prefill import role_problem
from openai_frontend.runtime.triton_interface import BACKENDS, IMAGE_SERVER, PYTHON_BACKEND
from openai_frontend.triton import backends, inprocess, python_backend

# vLLM's own list takes seconds to import; these, which `init-repo` and the demo models write,
# always exist.
_KNOWN_ARGUMENTS = frozenset((
    "model", "tokenizer", "tensor_parallel_size", "dtype", "max_model_len", "runner",
    "gpu_memory_utilization", "max_num_seqs", "disable_log_stats", "enable_lora", "max_loras",
    "max_lora_rank", "limit_mm_per_prompt",
))  # fmt: skip
_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


def check_engine(folder: ModelDirectory, role: str = "both") -> list[str]:
    """Features that the installed engine lacks. Raises ModelUnavailable, also if the engine
    generates text and does not fit the server's role.
    """
    if folder.engine is None:
        return []
    try:
        # By name: nothing depends on engines.
        runtime = importlib.import_module("openai_frontend.engines.loader")
        runtime.check_engine(folder.engine)
        if folder.engine == "vllm":
            return _check_vllm(folder, role)
    except ValueError as error:
        raise ModelUnavailable(str(error)) from error
    return []


def _check_vllm(folder: ModelDirectory, role: str) -> list[str]:
    arguments = importlib.import_module("openai_frontend.engines.vllm.arguments")
    versions = importlib.import_module("openai_frontend.engines.vllm.versions")
    limitations: list[str] = versions.installed().reports()
    limitations += arguments.open_endpoints(folder.arguments)
    unknown = [name for name in folder.arguments if name not in _KNOWN_ARGUMENTS]
    if unknown:
        try:
            arguments.check_names(unknown)
        except ValueError as error:
            raise ValueError(f"model.json: {error}") from error
    if folder.arguments.get("runner") != "pooling":
        _check_role(folder.arguments.get("kv_transfer_config"), role)
    configured, most = folder.arguments.get("max_model_len"), longest(folder)
    if isinstance(configured, int) and most is not None and configured > most:
        raise ValueError(
            f"model.json: max_model_len is {configured}, but the model's config.json allows {most}"
            " tokens. Lower it, or set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
        )
    return limitations


def _check_role(config: Any, role: str) -> None:
    kv_transfer = importlib.import_module("openai_frontend.engines.vllm.kv_transfer")
    values = config if isinstance(config, Mapping) else {}
    problem = role_problem(role, kv_transfer.described(values))
    if problem is not None:
        raise ValueError(problem)


def described(folder: ModelDirectory) -> ModelFacts | None:
    """The facts that the engine of an in-process model reads from its files; None if there is no
    such engine, or only a load shows them. Raises ModelUnavailable if they are invalid.
    """
    if folder.engine is None or not folder.versions:
        return None
    version = max(folder.versions)
    # A model that `serve` generates for a folder of weights has no files of its own
    generated = not (folder.path / str(version) / "model.json").exists()
    loader = importlib.import_module("openai_frontend.engines.loader")
    try:
        facts: ModelFacts | None = loader.describe(
            folder.name,
            version,
            folder.path,
            folder.config,
            folder.arguments if generated else None,
        )
    except ValueError as error:
        raise ModelUnavailable(str(error)) from error
    except ImportError as error:
        raise ModelUnavailable(f"config.pbtxt: parameters: engine: {error}") from error
    return facts


def longest(folder: ModelDirectory) -> int | None:
    """Context length in a vLLM model's config.json; None if it is missing or vLLM computes it
    differently.
    """
    weights = folder.weights() if folder.engine == "vllm" else None
    path = None if weights is None else weights / "config.json"
    if path is None or not path.is_file() or os.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1":
        return None
    if folder.arguments.keys() & {"hf_overrides", "hf_config_path", "config_format"}:
        return None
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # reading the model's architecture reports it
    if not isinstance(config, Mapping) or _is_scaled(config):
        return None
    found = [config[name] for name in _LENGTHS if isinstance(config.get(name), int)]
    return found[0] if len(found) == 1 else None


def _is_scaled(config: Mapping[str, Any]) -> bool:
    """Scaled rotary embeddings extend the context length."""
    ropes = [config.get(name) for name in ("rope_scaling", "rope_parameters")]
    return any(
        isinstance(rope, Mapping) and rope.get("rope_type", rope.get("type")) != "default"
        for rope in ropes
    )


# Files by which the core chooses the backend of a model whose config names none, and older names
_IMPLIED = {
    "model.onnx": "onnxruntime",
    "model.plan": "tensorrt",
    "model.pt": "pytorch",
    "model.py": "python",
    "model.savedmodel": "tensorflow",
    "model.graphdef": "tensorflow",
    "model.xml": "openvino",
}
_PLATFORMS = {
    "onnxruntime_onnx": "onnxruntime",
    "tensorrt_plan": "tensorrt",
    "pytorch_libtorch": "pytorch",
    "tensorflow_savedmodel": "tensorflow",
    "tensorflow_graphdef": "tensorflow",
}
_ENSEMBLE = "ensemble"  # the core's own


def backend_of(folder: ModelDirectory) -> str:
    """The backend that would run the model; empty if the core cannot know it either."""
    version = folder.version()
    if not folder.backend and version is not None:
        found = (name for file, name in _IMPLIED.items() if (version / file).exists())
        return next(found, "")
    return _PLATFORMS.get(folder.backend, folder.backend)


def missing_backend(folder: ModelDirectory, backend_directory: Path | None) -> str | None:
    """Why the model's backend cannot run here; None if it can."""
    backend = backend_of(folder)
    installed = backend_directory or IMAGE_SERVER / BACKENDS
    if backend in ("", _ENSEMBLE, inprocess.BACKEND) or (installed / backend).is_dir():
        return None
    if backend != PYTHON_BACKEND:
        return backends.missing(backend, installed)
    try:
        python_backend.shared_library()
    except python_backend.PythonBackendUnavailable as error:
        return str(error)
    return None
