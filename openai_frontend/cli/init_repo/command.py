"""`init-repo` from its options to its exit code."""

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from openai_frontend.cli.init_repo import nvidia, writer
from openai_frontend.cli.init_repo.model import RepositoryModel
from openai_frontend.cli.init_repo.options import (
    DTYPES,
    KINDS,
    RepositoryOptions,
    mistyped_folder,
    wanted,
)
from openai_frontend.cli.init_repo.presets import models

# Exit codes beside the command's own: written, but files of NVIDIA's are still to be put there
INCOMPLETE = 3

# flag -> what argparse is told beside its name and help
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
    "--engine-dir": {"type": Path, "metavar": "PATH"},
    "--nvidia-models": {"type": Path, "metavar": "PATH"},
    "--lora": {"action": "append", "metavar": "NAME=PATH"},
    "--force": {"action": "store_true", "default": False},
}
_HELP = {
    "--kind": "What runs it: vLLM in this process (inprocess, the default), NVIDIA's vLLM backend "
    "(vllm), a TensorRT-LLM engine behind NVIDIA's five models (tensorrt_llm), or TensorRT-LLM's "
    "LLM API (llmapi).",
    "--repository": "Folder that the model is put into. Default: model_repository.",
    "--name": "Name that requests use. Default: the last part of MODEL.",
    "--tokenizer": "Where the tokenizer is, if not with MODEL.",
    "--max-model-len": "Tokens of prompt and answer together. Default: what the model has.",
    "--max-batch-size": "Requests that run at the same time. Default: the backend's, or what the "
    "TensorRT-LLM engine was built for.",
    "--tensor-parallel-size": "GPUs that share one model. Default: 1.",
    "--dtype": "Type of the weights. Default: the backend's choice.",
    "--gpu-memory-utilization": "Share of a GPU's memory, above 0 and at most 1: all that vLLM may "
    "take, or what is left for TensorRT-LLM's cache.",
    "--instances": "Copies of the model, or of the models around a TensorRT-LLM engine. Default: "
    "1.",
    "--decoupled": "Whether answers can be streamed, for TensorRT-LLM. Default: they can.",
    "--engine-dir": "Folder of the TensorRT-LLM engine (--kind tensorrt_llm).",
    "--nvidia-models": "Folder all_models of NVIDIA's image, with the programs that --kind "
    f"tensorrt_llm and llmapi need. Default: {nvidia.IMAGE_MODELS}, where that is.",
    "--lora": "A LoRA adapter's name and folder; may be given again.",
    "--force": "Replace the files of a model that is there already; others in its folder stay.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL and the options."""
    parser.add_argument(
        "model", metavar="MODEL", help="a folder of weights, or a name on Hugging Face's hub"
    )
    for flag, value in _VALUES.items():
        extra = {"default": None} | dict(value)
        parser.add_argument(flag, help=_HELP[flag], **extra)


def run(given: Mapping[str, Any], check: Callable[[str, Path], int]) -> int:
    """Writes the repository, then has it checked; the exit code. Raises InvalidOption, OSError."""
    asked = wanted(given)
    if asked.folder is None and (warning := mistyped_folder(asked.model)) is not None:
        sys.stderr.write(f"openai-frontend: warning: {warning}\n")
    made = models(asked)
    if not asked.force:
        writer.refuse_existing(asked.repository, made)
    programs = asked.nvidia_models or nvidia.IMAGE_MODELS
    lacking = [line for model in made for line in _write(asked, model, programs)]
    if lacking:
        sys.stderr.write(
            f"openai-frontend: {asked.repository} is incomplete: {programs} lacks NVIDIA's own "
            f"programs, which {nvidia.IMAGE} has; copy {', '.join(lacking)}\n"
        )
        return INCOMPLETE
    command = ["openai-frontend", "serve", "--model-repository", str(asked.repository)]
    sys.stdout.write(f"\nServe it:\n{shlex.join(command)}\n\nAs it stands:\n")
    sys.stdout.flush()
    return check(asked.name, asked.repository)


def _write(asked: RepositoryOptions, model: RepositoryModel, programs: Path) -> list[str]:
    """Which folder is still to be copied to which."""
    copied = nvidia.programs(model, programs)
    files = {**writer.contents(model), **copied}
    for path in writer.write(asked.repository, model, files):
        sys.stdout.write(f"wrote {path}\n")
    for line in nvidia.differences(model, programs):
        sys.stdout.write(f"note: {line}\n")
    if not nvidia.missing(model, list(copied)):
        return []
    source = programs / str(model.nvidia_folder)
    return [f"{source / '1'} to {asked.repository / model.name / '1'}"]
