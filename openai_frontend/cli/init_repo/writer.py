"""Writes the files of a repository. Removes nothing."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from openai_frontend.cli import pbtxt
from openai_frontend.cli.init_repo.model import RepositoryModel
from openai_frontend.cli.init_repo.options import ModelExists

FILE = "openai_frontend.yaml"
_WRITTEN_BY = "# Written by `openai-frontend init-repo`; edit as you like.\n"


def refuse_existing(repository: Path, models: Sequence[RepositoryModel]) -> None:
    """Raises ModelExists if a model's folder exists."""
    for model in models:
        if (repository / model.name).exists():
            raise ModelExists(repository / model.name)


def write(repository: Path, model: RepositoryModel, files: Mapping[str, bytes]) -> Iterator[Path]:
    """Yields each path after writing it. Raises OSError."""
    folder = repository / model.name
    (folder / "1").mkdir(parents=True, exist_ok=True)  # Triton ignores models without a version
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, content)
        yield path


def contents(model: RepositoryModel, *, written_by: str = _WRITTEN_BY) -> dict[str, bytes]:
    """Path in the model's folder -> content; `written_by` is the first line of each file."""
    texts = {"config.pbtxt": written_by + pbtxt.write(model.config), **model.files}
    if model.options:
        options = yaml.safe_dump(dict(model.options), sort_keys=False, allow_unicode=True)
        texts[FILE] = written_by + options
    return {name: text.encode() for name, text in texts.items()}


def _replace(path: Path, content: bytes) -> None:
    """Atomic, and only if the content differs: a server may be polling the repository."""
    if path.is_file() and path.read_bytes() == content:
        return
    # Containers that share a volume may share process ids.
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
