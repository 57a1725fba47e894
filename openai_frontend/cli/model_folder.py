"""What a model's folder says before anything runs: its config.pbtxt, its engine's arguments."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from openai_frontend.cli import text_format
from openai_frontend.errors import ModelUnavailable

# What lies in a folder of weights, which a model's folder refers to
_WEIGHTS = ("tokenizer.json", "tokenizer_config.json", "config.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """One model of a repository, or a bare folder of weights (`backend` is None)."""

    name: str
    path: Path
    backend: str | None = None
    engine: str | None = None  # of the in-process backend
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of model.json
    tensors: frozenset[str] = frozenset()  # that config.pbtxt names; engines of ours add their own
    version: Path | None = None

    def tokenizer(self) -> Path | None:
        """Its folder, as far as the files say it."""
        if self.backend is None:
            return self.path
        if self.backend != "inprocess" or self.version is None:
            return None  # the gateway is told by its own engines alone
        keys = ("tokenizer", "model") if self.engine == "vllm" else ("tokenizer",)
        named = next((self.arguments[key] for key in keys if self.arguments.get(key)), None)
        if not isinstance(named, str):
            return None
        folder = self.version / named if named.startswith(".") else Path(named)
        return folder if folder.is_dir() else None


def find(name_or_path: str, repositories: Sequence[Path]) -> ModelFolder:
    """A model by its name in a repository or by its path. ModelUnavailable where there is none."""
    for path in (Path(name_or_path), *(each / name_or_path for each in repositories)):
        if (path / "config.pbtxt").is_file() or _versions(path):
            return _read(path)
        if any((path / name).is_file() for name in _WEIGHTS):
            return ModelFolder(name=path.resolve().name, path=path)
    known = [path.name for each in repositories if each.is_dir() for path in each.iterdir()]
    close = get_close_matches(name_or_path, known, n=1)
    guess = f"; did you mean '{close[0]}'?" if close else ""
    raise ModelUnavailable(f"there is no model '{name_or_path}'{guess}")


def _versions(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    numbers = [each for each in path.iterdir() if each.name.isdecimal() and each.is_dir()]
    return sorted(numbers, key=lambda each: int(each.name))


def _read(path: Path) -> ModelFolder:
    versions = _versions(path)
    version = versions[-1] if versions else None  # the latest, as Triton chooses unless told
    config = _config(path / "config.pbtxt")
    tensors = [tensor for side in ("input", "output") for tensor in config.get(side, ())]
    return ModelFolder(
        name=path.resolve().name,
        path=path,
        backend=_first(config, "backend") or _first(config, "platform") or "",
        engine=_engine(config),
        arguments=_arguments(version / "model.json") if version else {},
        tensors=frozenset(_first(tensor, "name") for tensor in tensors),
        version=version,
    )


def _config(path: Path) -> text_format.Message:
    try:
        return text_format.read(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"{path}: {error}") from error


def _first(message: Mapping[str, Sequence[Any]], name: str) -> str:
    return str(next(iter(message.get(name, ())), ""))


def _engine(config: text_format.Message) -> str | None:
    for parameter in config.get("parameters", ()):
        if _first(parameter, "key") == "engine":
            return _first(parameter["value"][0], "string_value")
    return None


def _arguments(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise ModelUnavailable(f"{path}: not a JSON object")
    return found
