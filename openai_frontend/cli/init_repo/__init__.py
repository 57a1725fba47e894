"""`init-repo`: writes a model repository for a Hugging Face model, and checks it."""

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from openai_frontend.cli.init_repo.model import (
    IMAGE_MODELS,
    NVIDIA_IMAGE,
    RepositoryModel,
    file_contents,
    missing_nvidia_files,
    nvidia_differences,
    nvidia_programs,
    refuse_existing,
    write_model,
)
from openai_frontend.cli.init_repo.options import (
    DTYPES,
    KINDS,
    RepositoryOptions,
    mistyped_folder,
    parse_options,
)
from openai_frontend.cli.init_repo.presets import models

# Exit code: the repository is written, but files from NVIDIA are missing
INCOMPLETE = 3

# flag -> further arguments of add_argument
_VALUES: Mapping[str, Mapping[str, Any]] = {
    "--kind": {"metavar": "|".join(KINDS)},
    "--repository": {"type": Path, "metavar": "PATH", "default": Path("model_repository")},
    "--name": {"metavar": "NAME"},
    "--tokenizer": {"metavar": "FOLDER_OR_HUB_NAME"},
    "--max-model-len": {"type": int, "metavar": "TOKENS"},
    "--max-batch-size": {"type": int, "metavar": "NUMBER"},
    "--tensor-parallel-size": {"type": int, "metavar": "GPUS"},
    "--dtype": {"metavar": "|".join(DTYPES)},
    "--gpu-memory-utilization": {"type": float, "metavar": "SHARE"},
    "--instances": {"type": int, "metavar": "NUMBER"},
    "--decoupled": {"action": argparse.BooleanOptionalAction},
    "--nvidia-models": {"type": Path, "metavar": "PATH"},
    "--lora": {"action": "append", "metavar": "NAME=PATH"},
    "--force": {"action": "store_true", "default": False},
}
_HELP = {
    "--kind": "Backend: vLLM in this process (inprocess, default), NVIDIA's vLLM backend (vllm), "
    "or TensorRT-LLM's LLM API (llmapi).",
    "--repository": "Folder of the repository. Default: model_repository.",
    "--name": "Name in requests. Default: the last component of MODEL.",
    "--tokenizer": "Folder or name on the hub of the tokenizer. Default: MODEL.",
    "--max-model-len": "Context length in tokens, prompt and output. Default: the model's.",
    "--max-batch-size": "Maximum requests per batch. Default: the backend's.",
    "--tensor-parallel-size": "Number of GPUs per model. Default: 1.",
    "--dtype": "Data type of the weights. Default: chosen by the backend.",
    "--gpu-memory-utilization": "Share of GPU memory, above 0 and at most 1: for vLLM in total, or "
    "of the free memory for TensorRT-LLM's KV cache.",
    "--instances": "Instances of the model. Default: 1.",
    "--decoupled": "Allow streaming with TensorRT-LLM. Default: yes.",
    "--nvidia-models": "Folder all_models of NVIDIA's image, with the Python files that --kind "
    f"llmapi needs. Default: {IMAGE_MODELS}, if it exists.",
    "--lora": "Name and folder of a LoRA adapter; repeatable.",
    "--force": "Overwrite the files of an existing model; other files in its folder remain.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="folder of weights, or name on Hugging Face's hub"
    )
    for flag, value in _VALUES.items():
        extra = {"default": None} | dict(value)
        parser.add_argument(flag, help=_HELP[flag], **extra)


def run(arguments: Mapping[str, Any], check: Callable[[str, Path], int]) -> int:
    """Returns the exit code; `check` checks the repository. Raises InvalidOption, OSError."""
    options = parse_options(arguments)
    if options.folder is None and (warning := mistyped_folder(options.model)) is not None:
        sys.stderr.write(f"openai-frontend: warning: {warning}\n")
    generated = models(options)
    if not options.force:
        refuse_existing(options.repository, generated)
    programs = options.nvidia_models or IMAGE_MODELS
    missing = [line for model in generated for line in _write(options, model, programs)]
    if missing:
        sys.stderr.write(
            f"openai-frontend: {options.repository} is incomplete: {programs} does not have "
            f"NVIDIA's Python files. In {NVIDIA_IMAGE}, copy {', '.join(missing)}\n"
        )
        return INCOMPLETE
    command = ["openai-frontend", "serve", "--model-repository", str(options.repository)]
    sys.stdout.write(f"\nServe it with:\n{shlex.join(command)}\n\nReport:\n")
    sys.stdout.flush()
    return check(options.name, options.repository)


def _write(options: RepositoryOptions, model: RepositoryModel, programs: Path) -> list[str]:
    """Returns the folders that are still to be copied, and where to."""
    copied = nvidia_programs(model, programs)
    files = {**file_contents(model), **copied}
    for path in write_model(options.repository, model, files):
        sys.stdout.write(f"wrote {path}\n")
    for line in nvidia_differences(model, programs):
        sys.stdout.write(f"note: {line}\n")
    if not missing_nvidia_files(model, list(copied)):
        return []
    source = programs / str(model.nvidia_folder)
    return [f"{source / '1'} to {options.repository / model.name / '1'}"]
