"""A model of a repository: tables of tensors for its config, and how its files are written: ours,
and those copied from NVIDIA's image.

Removes no file.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from openai_frontend.cli import pbtxt
from openai_frontend.cli.init_repo.options import ModelExists
from openai_frontend.runtime.files import replace_file


@dataclass(frozen=True, kw_only=True)
class RepositoryModel:
    """A model's folder: our files, and NVIDIA's that it needs."""

    name: str
    config: Mapping[str, Any]  # config.pbtxt in the shape of Triton's JSON
    options: Mapping[str, Any] = field(default_factory=dict)  # openai_frontend.yaml
    files: Mapping[str, str] = field(default_factory=dict)  # path within the folder -> text
    nvidia_folder: str | None = None  # of this model's Python files in NVIDIA's image
    nvidia_files: tuple[str, ...] = ()  # required paths within that folder


def tensors(table: str) -> list[dict[str, Any]]:
    """`input` or `output` of a config, from one line per tensor: name, datatype, size of its one
    dimension, and `optional` if it is.
    """
    return [_tensor(*line.split()) for line in table.splitlines() if line]


def _tensor(name: str, datatype: str, size: str, *optional: str) -> dict[str, Any]:
    tensor: dict[str, Any] = {"name": name, "data_type": f"TYPE_{datatype}", "dims": [int(size)]}
    return {**tensor, "optional": True} if optional else tensor


def parameters(values: Mapping[str, str]) -> dict[str, Any]:
    """`parameters` of a config."""
    return {key: {"string_value": value} for key, value in values.items()}


FILE = "openai_frontend.yaml"
_WRITTEN_BY = "# Written by `openai-frontend init-repo`; edit as you like.\n"


def refuse_existing(repository: Path, models: Sequence[RepositoryModel]) -> None:
    """Raises ModelExists if a model's folder exists."""
    for model in models:
        if (repository / model.name).exists():
            raise ModelExists(repository / model.name)


def write_model(
    repository: Path, model: RepositoryModel, files: Mapping[str, bytes]
) -> Iterator[Path]:
    """Yields each path after writing it. Raises OSError."""
    folder = repository / model.name
    (folder / "1").mkdir(parents=True, exist_ok=True)  # Triton ignores models without a version
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, content)
        yield path


def file_contents(model: RepositoryModel, *, written_by: str = _WRITTEN_BY) -> dict[str, bytes]:
    """Path in the model's folder -> content; `written_by` is the first line of each file."""
    texts = {"config.pbtxt": written_by + pbtxt.write(model.config), **model.files}
    if model.options:
        options = yaml.safe_dump(dict(model.options), sort_keys=False, allow_unicode=True)
        texts[FILE] = written_by + options
    return {name: text.encode() for name, text in texts.items()}


def _replace(path: Path, content: bytes) -> None:
    """Only if the content differs: a server may be polling the repository."""
    if not path.is_file() or path.read_bytes() != content:
        replace_file(path, content)


IMAGE_MODELS = Path("/app/all_models")
NVIDIA_IMAGE = "nvcr.io/nvidia/tritonserver:YY.MM-trtllm-python-py3"

_OPEN_VALUE = re.compile(r"\$\{\w+\}")


def nvidia_programs(model: RepositoryModel, models: Path | None) -> dict[str, bytes]:
    """Path in the model's folder -> content of NVIDIA's Python file, which is never shipped."""
    folder = _nvidia_folder(model, models)
    if folder is None:
        return {}
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*.py"))
        if path.is_file()
    }


def missing_nvidia_files(model: RepositoryModel, present: Sequence[str]) -> list[str]:
    """Required Python files that are not among `present`."""
    return [name for name in model.nvidia_files if name not in present]


def nvidia_differences(model: RepositoryModel, models: Path | None) -> Iterator[str]:
    """A sentence for inputs and one for outputs that differ from NVIDIA's template."""
    folder = _nvidia_folder(model, models)
    template = None if folder is None else folder / "config.pbtxt"
    if template is None or not template.is_file():
        return
    text = _OPEN_VALUE.sub("0", template.read_text(encoding="utf-8"))
    try:
        theirs = pbtxt.read(text)
    except ValueError as error:
        yield f"{template} cannot be read: {error}"
        return
    for side in ("input", "output"):
        their_names = {tensor["name"] for tensor in theirs.get(side, ())}
        odd = sorted(their_names ^ {tensor["name"] for tensor in model.config[side]})
        if odd:
            yield f"{template} differs in {side} {', '.join(odd)}"


def _nvidia_folder(model: RepositoryModel, models: Path | None) -> Path | None:
    if model.nvidia_folder is None or models is None:
        return None
    return models / model.nvidia_folder
