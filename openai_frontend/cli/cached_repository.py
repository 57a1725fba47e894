"""The model repository of `serve MODEL`: the folder itself, or one generated in the user's cache.

A generated repository is named after a hash of its content, so servers that run at the same time
never write different files to the same path.
"""

import hashlib
import importlib
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from openai_frontend.cli.init_repo.model import RepositoryModel, file_contents, write_model
from openai_frontend.cli.init_repo.options import (
    InvalidOption,
    expanded,
    holds_weights,
    is_hub_name,
    mistyped_folder,
    model_name,
    parse_options,
)
from openai_frontend.cli.init_repo.presets import models
from openai_frontend.config import model_folders
from openai_frontend.config.bucket_repositories import is_bucket_url
from openai_frontend.config.loader import InvalidSettings
from openai_frontend.config.settings import Settings
from openai_frontend.runtime.cache_folder import cache_folder

logger = logging.getLogger(__name__)

# Engine arguments that have their own option
_ELSEWHERE = {"model": "MODEL", "served_model_name": "--served-model-name"}
_WRITTEN_BY = "# Written by `openai-frontend serve MODEL`, which overwrites changes.\n"


def repository(model: str, settings: Settings) -> Path:
    """The complete repository to serve for MODEL. Raises InvalidSettings."""
    if is_bucket_url(model):
        raise InvalidSettings(
            "MODEL: a bucket is a model repository; run: "
            f"openai-frontend serve --model-repository {model}"
        )
    path = expanded(model)
    if path.is_dir() and not holds_weights(path):
        _check_repository(path, settings)
        return path
    if not path.is_dir():
        _check_hub_name(model, settings)
    _check_vllm()
    return _written(generated(model, settings))


def generated(model: str, settings: Settings) -> RepositoryModel:
    """The model of the repository for weights. Raises InvalidSettings."""
    try:
        return models(parse_options(_options(model, settings)))[0]
    except InvalidOption as error:
        raise InvalidSettings(str(error)) from None


def is_generated(repository: Path) -> bool:
    """Whether `serve MODEL` generated the repository."""
    return repository.parent == _cache()


def _check_repository(path: Path, settings: Settings) -> None:
    if model_folders.is_model(path):
        raise InvalidSettings(
            f"MODEL: {path} is a single model of a repository. Serve the repository: "
            f"openai-frontend serve {path.parent}"
        )
    if not any(map(model_folders.is_model, model_folders.folders([path]))):
        raise InvalidSettings(
            f"MODEL: {path} contains neither weights (config.json) nor models (NAME/config.pbtxt)"
        )
    for name in ("served_model_name", "engine_arg"):
        if getattr(settings, name):
            raise InvalidSettings(
                f"{name}: only valid for weights, but {path} is a model repository. Set aliases in "
                "openai_frontend.yaml and engine arguments in model.json"
            )


def _check_hub_name(model: str, settings: Settings) -> None:
    if expanded(model).is_file():
        raise InvalidSettings(f"MODEL: {model} is a file, not a folder of weights")
    if model.startswith((".", "/", "~")):
        raise InvalidSettings(f"MODEL: folder {model} does not exist")
    if "/" in model and is_hub_name(model):
        if (warning := mistyped_folder(model)) is not None:
            logger.warning("%s", warning)
        return
    if settings.api_key:  # vLLM's flag accepts several keys: this may be the second one
        raise InvalidSettings(
            "MODEL: neither a folder nor ORG/MODEL; repeat --api-key for each key"
        )
    reason = f"folder '{model}' does not exist, and names on Hugging Face's hub are ORG/MODEL"
    for folder in settings.repository_folders():
        if model_folders.is_model(folder / model):
            reason += f". {folder} has a model '{model}'; run: openai-frontend serve {folder}"
    raise InvalidSettings(f"MODEL: {reason}")


def _options(model: str, settings: Settings) -> Mapping[str, Any]:
    """The options of `init-repo`."""
    names = settings.served_model_name
    own = names[0] if names else str(expanded(model).resolve())
    return {
        "model": model,
        "repository": Path(),  # chosen later, by a hash of the content
        "name": model_name("--served-model-name", own.rpartition("/")[2]),
        "served_names": names,
        "engine_arguments": _engine_arguments(settings.engine_arg),
    }


def _engine_arguments(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments for model.json, with absolute paths."""
    for name in given:
        if name in _ELSEWHERE:
            raise InvalidSettings(f"engine_arg: set {name} with {_ELSEWHERE[name]}")
    if given:
        _check_names(given)
    return {
        name: _path(value) if isinstance(value, str) else value for name, value in given.items()
    }


def _check_vllm() -> None:
    try:
        _vllm("versions").site_packages()
    except ValueError as error:
        raise InvalidSettings(f"MODEL: {error}") from None


def _vllm(module: str) -> ModuleType:
    # by name, as the backend does: nothing imports the engines
    return importlib.import_module(f"openai_frontend.engines.vllm.{module}")


def _check_names(names: Iterable[str]) -> None:
    arguments = _vllm("arguments")
    try:
        with _vllm("processes.environment").restored():
            arguments.set_environment()
            arguments.check_names(names)
    except ValueError as error:
        raise InvalidSettings(f"engine_arg: {error}") from None


def _path(value: str) -> str:
    if value.startswith(("./", "../", "~/")):
        return str(expanded(value).resolve())
    return value


def _written(model: RepositoryModel) -> Path:
    files = file_contents(model, written_by=_WRITTEN_BY)
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    cache = _cache()
    if cache is None:
        raise InvalidSettings(
            "MODEL: no home folder to cache the generated repository; set XDG_CACHE_HOME"
        )
    folder = cache / f"{model.name}-{digest.hexdigest()[:16]}"
    try:
        # Engine arguments may contain a token for the hub.
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in write_model(folder, model, files):
            pass
    except OSError as error:
        raise InvalidSettings(
            f"{error.filename}: {error.strerror}. The repository for MODEL is written to the "
            "user's cache; set XDG_CACHE_HOME to use another folder"
        ) from None
    return folder


def _cache() -> Path | None:
    """None without a home."""
    folder = cache_folder()
    return None if folder is None else folder / "model-repositories"
