"""The models of the API tests: the stand-ins, or those of a repository that an environment
variable names, on a machine with a GPU.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from openai_frontend.cli.model_directory import read_config
from openai_frontend.config import model_options
from openai_frontend.contracts.select import SelectedContracts
from openai_frontend.errors import ModelUnavailable
from openai_frontend.models import model_files
from scripts.generate_backends_docs import FIELDS, chosen, kinds

VARIABLE = "OPENAI_FRONTEND_TEST_REPOSITORY"
STANDINS = ("ensemble", "tensorrt_llm_bls", "llmapi", "llmapi_whole", "own_chat", "nvidia_vllm")


class Model(NamedTuple):
    """A model and the facts of its contract."""

    name: str
    chosen: SelectedContracts

    def honours(self, field: str) -> bool:
        """Whether it honours a field of the API, by the table of docs/backends.md."""
        contract = self.chosen.generation
        return contract is not None and contract.supports(FIELDS.get(field, field))


def repository() -> Path | None:
    """The repository of real models, if one is set."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None


@cache
def params() -> list[Any]:
    """Every model as a parameter of a test, with marks for its requirements."""
    made = kinds()
    standins = [
        pytest.param(
            Model(name, made[name]),
            id=name,
            marks=[pytest.mark.engine] if name == "nvidia_vllm" else [],
        )
        for name in STANDINS
    ]
    real = _real(repository())
    return standins + [
        pytest.param(model, id=f"gpu-{model.name}", marks=pytest.mark.gpu) for model in real
    ]


def _real(folder: Path | None) -> list[Model]:
    """Models that accept text and are not part of another model."""
    if folder is None:
        return []
    models = {each.name: each for each in sorted(folder.iterdir()) if each.is_dir()}
    configs = {name: read_config(path, path / "1") for name, path in models.items()}
    parts = {part for config in configs.values() for part in model_files.composing_models(config)}
    found = []
    for name, path in models.items():
        if name in parts or model_options.read(path).ensemble:
            continue
        try:
            kind = chosen(path)
        except ModelUnavailable:
            continue
        if kind.generation is not None:
            found.append(Model(name, kind))
    return found
