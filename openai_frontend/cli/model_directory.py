"""Reads a model's directory without running anything: config, options and facts."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai_frontend.cli import pbtxt
from openai_frontend.cli.init_repo import vllm
from openai_frontend.cli.init_repo.model import RepositoryModel
from openai_frontend.cli.init_repo.options import holds_weights
from openai_frontend.config import model_folders, model_options, strict_yaml
from openai_frontend.config.model_options import ModelOptions
from openai_frontend.errors import ModelUnavailable, did_you_mean
from openai_frontend.model_facts import ModelFacts
from openai_frontend.models import model_files
from openai_frontend.models.model_files import ModelSource

Config = dict[str, Any]


def read_config(folder: Path, version: Path | None) -> Config:
    """config.pbtxt in the shape of Triton's JSON, completed as its backend completes it on load.

    Without a file, all defaults. Raises ModelUnavailable if it cannot be read.
    """
    path = folder / "config.pbtxt"
    try:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        config = pbtxt.read(text)
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"{path}: {error}") from error
    name = folder.resolve().name
    config["name"] = config["name"] or name
    if config["name"] != name:
        raise ModelUnavailable(f"{path}: name is '{config['name']}', but the folder is '{name}'")
    complete = _COMPLETED.get(config.get("backend", ""))
    return config if complete is None else complete(config, version)


def _complete_python(config: Config, version: Path | None) -> Config:
    """Complete the config of TensorRT-LLM's LLM API from model.yaml. Other Python models cannot be
    completed.
    """
    path = None if version is None else version / "model.yaml"
    if path is None or not path.is_file():
        return config
    try:
        content = strict_yaml.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"{path}: {' '.join(str(error).split())}") from error
    triton = content.get("triton_config") if isinstance(content, dict) else None
    if not isinstance(triton, dict):
        return config
    try:
        max_batch_size = int(triton.get("max_batch_size", 0))
    except (TypeError, ValueError):
        raise ModelUnavailable(f"{path}: max_batch_size is not a number") from None
    return {
        **config,
        "max_batch_size": max_batch_size,
        "model_transaction_policy": {"decoupled": bool(triton.get("decoupled", False))},
    }


_COMPLETED: Mapping[str, Callable[[Config, Path | None], Config]] = {
    "inprocess": lambda config, _: vllm.completed_inprocess(config),
    "vllm": lambda config, _: vllm.completed_nvidias(config),
    "python": _complete_python,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDirectory:
    """A model of a repository, or one that `serve` generates for a folder of weights."""

    name: str
    path: Path
    options: ModelOptions
    config: Config
    arguments: Mapping[str, Any] = field(default_factory=dict)  # model.json
    versions: Sequence[int] = ()  # those that Triton would load

    @property
    def backend(self) -> str:
        """The backend of the config; for an ensemble, its platform."""
        return str(self.config.get("backend") or self.config.get("platform") or "")

    @property
    def engine(self) -> str | None:
        """The engine of the in-process backend; None for other backends."""
        engine = self.config.get("parameters", {}).get("engine", {}).get("string_value")
        return str(engine or "vllm") if self.backend == "inprocess" else None

    def version(self) -> Path | None:
        """The folder of the latest version."""
        return self.path / str(max(self.versions)) if self.versions else None

    def facts(self) -> ModelFacts:
        """Tokenizer and context length, as far as files contain them."""
        if self.engine is not None:
            return self._engine_facts()
        return model_files.read_facts(
            ModelSource(config=self.config, folder=self.version()), self._part
        )

    def is_decoupled(self) -> bool:
        """Whether it may send several responses; an ensemble may if one of its steps may."""
        steps = self.config.get("ensemble_scheduling", {}).get("step", ())
        policies = [self.config, *self.parts(step["model_name"] for step in steps)]
        return any(
            each.get("model_transaction_policy", {}).get("decoupled", False) for each in policies
        )

    def parts(self, names: Iterable[str]) -> list[Config]:
        """The configs of those models that are in the same repository."""
        sources = (self._part(name) for name in names)
        return [dict(each.config) for each in sources if each is not None]

    def _engine_facts(self) -> ModelFacts:
        """Facts that an in-process engine would report itself."""
        keys = ("tokenizer", "model") if self.engine == "vllm" else ("tokenizer",)
        places = (self._place(key) for key in keys)
        place = next((each for each in places if each is not None), None)
        return ModelFacts(
            max_model_len=self.arguments.get("max_model_len"),
            tokenizer=None if place is None else str(place),
            tasks=None,
        )

    def weights(self) -> Path | None:
        """vLLM's argument `model`: a folder, or a name on a hub."""
        return self._place("model")

    def _place(self, argument: str) -> Path | None:
        named, version = self.arguments.get(argument), self.version()
        if not isinstance(named, str) or not named or version is None:
            return None
        return version / named if named.startswith(".") else Path(named)

    def _part(self, name: str) -> ModelSource | None:
        folder = self.path.parent / name
        if not (folder / "config.pbtxt").is_file():
            return None
        return ModelSource(config=read_config(folder, None), folder=None)


def find(
    name_or_path: str, repositories: Sequence[Path], options: Mapping[str, ModelOptions]
) -> ModelDirectory:
    """A model by its name in a repository or by its path. Raises ModelUnavailable."""
    for path in _candidates(name_or_path, repositories):
        if model_folders.is_model(path):
            return read(path, options)
    known = {path.name: path for path in model_folders.folders(repositories)}
    if (folder := known.get(name_or_path)) is not None:
        raise ModelUnavailable(
            f"no model '{name_or_path}': {folder} has neither a config.pbtxt nor a version folder"
        )
    raise ModelUnavailable(f"no model '{name_or_path}'{did_you_mean(name_or_path, known)}")


def find_weights(name_or_path: str, repositories: Sequence[Path]) -> Path | None:
    """A folder of weights that is not the model of a repository."""
    for path in _candidates(name_or_path, repositories):
        if model_folders.is_model(path):
            return None
        if _holds_weights(path):
            return path
    return None


def _candidates(name_or_path: str, repositories: Sequence[Path]) -> list[Path]:
    return [Path(name_or_path), *(each / name_or_path for each in repositories)]


def generated(
    weights: Path, model: RepositoryModel, options: Mapping[str, ModelOptions]
) -> ModelDirectory:
    """The model that `serve` generates for a folder of weights."""
    own = ModelOptions.model_validate(dict(model.options))
    return ModelDirectory(
        name=model.name,
        path=weights,
        options=model_options.of_model(model.name, None, options).over(own),
        config=vllm.completed_inprocess(pbtxt.read(pbtxt.write(model.config))),
        arguments=json.loads(model.files["1/model.json"]),
        versions=[1],
    )


def _holds_weights(path: Path) -> bool:
    try:
        return holds_weights(path)
    except PermissionError as error:
        raise ModelUnavailable(f"{path}: {error.strerror}") from error


def read(path: Path, options: Mapping[str, ModelOptions]) -> ModelDirectory:
    """Raises ModelUnavailable with the name of a file that cannot be read."""
    numbers = model_folders.versions(path)
    latest = path / str(numbers[-1]) if numbers else None
    name = path.resolve().name
    config = read_config(path, latest)
    return ModelDirectory(
        name=name,
        path=path,
        options=model_options.of_model(name, path, options),
        config=config,
        arguments=_arguments(latest / "model.json") if latest else {},
        versions=_loaded(numbers, config.get("version_policy")),
    )


def _loaded(numbers: Sequence[int], policy: Mapping[str, Any] | None) -> Sequence[int]:
    """The versions that the version policy selects; by default, the latest."""
    policy = policy or {}
    if "all" in policy:
        return numbers
    if "specific" in policy:
        return [number for number in numbers if number in policy["specific"].get("versions", ())]
    return numbers[-policy.get("latest", {"num_versions": 1})["num_versions"] :]


def _arguments(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise ModelUnavailable(f"{path}: not a JSON object")
    return found
