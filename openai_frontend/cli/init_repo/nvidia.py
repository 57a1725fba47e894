"""NVIDIA's Python files: copied from NVIDIA's image, never shipped."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from openai_frontend.cli import pbtxt
from openai_frontend.cli.init_repo.model import RepositoryModel

IMAGE_MODELS = Path("/app/all_models")
IMAGE = "nvcr.io/nvidia/tritonserver:YY.MM-trtllm-python-py3"

_OPEN_VALUE = re.compile(r"\$\{\w+\}")


def programs(model: RepositoryModel, models: Path | None) -> dict[str, bytes]:
    """Path in the model's folder -> content of NVIDIA's Python file."""
    folder = _folder(model, models)
    if folder is None:
        return {}
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*.py"))
        if path.is_file()
    }


def missing(model: RepositoryModel, present: Sequence[str]) -> list[str]:
    """Required Python files that are not among `present`."""
    return [name for name in model.nvidia_files if name not in present]


def differences(model: RepositoryModel, models: Path | None) -> Iterator[str]:
    """A sentence for inputs and one for outputs that differ from NVIDIA's template."""
    folder = _folder(model, models)
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


def _folder(model: RepositoryModel, models: Path | None) -> Path | None:
    if model.nvidia_folder is None or models is None:
        return None
    return models / model.nvidia_folder
