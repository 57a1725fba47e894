"""The model repository behind `serve MODEL`: made in the user's cache, or the folder itself.

A made repository is named after its content, so another option or model has another folder and
servers that run at the same time never write different files to the same place.
"""

import hashlib
import importlib
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from openai_frontend.cli import model_directory
from openai_frontend.cli.init_repo import writer
from openai_frontend.cli.init_repo.model import RepositoryModel
from openai_frontend.cli.init_repo.options import (
    InvalidOption,
    expanded,
    holds_weights,
    is_hub_name,
    mistyped_folder,
    model_name,
    wanted,
)
from openai_frontend.cli.init_repo.presets import models
from openai_frontend.config.loader import InvalidSettings
from openai_frontend.config.settings import Settings

logger = logging.getLogger(__name__)

# Engine arguments that have another place
_ELSEWHERE = {"model": "MODEL", "served_model_name": "--served-model-name"}
_WRITTEN_BY = "# Written by `openai-frontend serve MODEL`, which replaces changes.\n"


def repository(model: str, settings: Settings) -> Path:
    """The repository to serve for MODEL; it is complete. Raises InvalidSettings."""
    path = expanded(model)
    if path.is_dir() and not holds_weights(path):
        _check_repository(path, settings)
        return path
    if not path.is_dir():
        _check_hub_name(model, settings)
    _check_vllm()
    try:
        made = models(wanted(_options(model, settings)))[0]
    except InvalidOption as error:
        raise InvalidSettings(str(error)) from None
    return _written(made)


def is_made(repository: Path) -> bool:
    """Whether it is a repository that `serve MODEL` made."""
    return repository.parent == _cache()


def _check_repository(path: Path, settings: Settings) -> None:
    if model_directory.is_model(path):
        raise InvalidSettings(
            f"MODEL: {path} is one model of a repository. Serve the repository: "
            f"openai-frontend serve {path.parent}"
        )
    if not any(map(model_directory.is_model, model_directory.folders([path]))):
        raise InvalidSettings(
            f"MODEL: {path} holds neither weights (config.json) nor models (NAME/config.pbtxt)"
        )
    for name in ("served_model_name", "engine_arg"):
        if getattr(settings, name):
            raise InvalidSettings(
                f"{name}: is for weights, but {path} is a model repository. Its models have "
                "openai_frontend.yaml (aliases) and model.json (engine arguments)"
            )


def _check_hub_name(model: str, settings: Settings) -> None:
    if expanded(model).is_file():
        raise InvalidSettings(f"MODEL: {model} is a file, not a folder of weights")
    if model.startswith((".", "/", "~")):
        raise InvalidSettings(f"MODEL: there is no folder {model}")
    if "/" in model and is_hub_name(model):
        if (warning := mistyped_folder(model)) is not None:
            logger.warning("%s", warning)
        return
    if settings.api_key:  # vLLM's flag takes several keys: this may be the second
        raise InvalidSettings("MODEL: it is neither a folder nor ORG/MODEL; repeat --api-key")
    reason = f"there is no folder '{model}', and a name on Hugging Face's hub is ORG/MODEL"
    for folder in settings.model_repository:
        if model_directory.is_model(folder / model):
            reason += f". {folder} has a model '{model}': openai-frontend serve {folder}"
    raise InvalidSettings(f"MODEL: {reason}")


def _options(model: str, settings: Settings) -> Mapping[str, Any]:
    """As `init-repo` takes them."""
    names = settings.served_model_name
    own = names[0] if names else str(expanded(model).resolve())
    return {
        "model": model,
        "repository": Path(),  # the cache's folder is known only with the content
        "name": model_name("--served-model-name", own.rpartition("/")[2]),
        "served_names": names,
        "engine_arguments": _engine_arguments(settings.engine_arg),
    }


def _engine_arguments(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """As model.json takes them: a path of the shell's folder is absolute there."""
    for name in given:
        if name in _ELSEWHERE:
            raise InvalidSettings(f"engine_arg: {name} is given as {_ELSEWHERE[name]}")
    if given:
        _check_names(given)
    return {
        name: _path(value) if isinstance(value, str) else value for name, value in given.items()
    }


def _check_vllm() -> None:
    try:
        _vllm_arguments().check_installed()
    except ValueError as error:
        raise InvalidSettings(f"MODEL: {error}") from None


def _vllm_arguments() -> ModuleType:
    # by name, as the backend itself does: nothing depends on engines
    return importlib.import_module("openai_frontend.engines.vllm.arguments")


def _check_names(names: Iterable[str]) -> None:
    arguments = _vllm_arguments()
    arguments.set_environment()
    try:
        arguments.check_names(names)
    except ValueError as error:
        raise InvalidSettings(f"engine_arg: {error}") from None


def _path(value: str) -> str:
    if value.startswith(("./", "../", "~/")):
        return str(expanded(value).resolve())
    return value


def _written(model: RepositoryModel) -> Path:
    files = writer.contents(model, written_by=_WRITTEN_BY)
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    cache = _cache()
    if cache is None:
        raise InvalidSettings(
            "MODEL: the user has no home folder; set XDG_CACHE_HOME to a folder for the repository"
        )
    folder = cache / f"{model.name}-{digest.hexdigest()[:16]}"
    try:
        # Engine arguments may hold a token for the hub.
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in writer.write(folder, model, files):
            pass
    except OSError as error:
        raise InvalidSettings(
            f"{error.filename}: {error.strerror}. The repository for MODEL is written to the "
            "user's cache; XDG_CACHE_HOME names another folder"
        ) from None
    return folder


def _cache() -> Path | None:
    """XDG Base Directory Specification: a relative path is ignored. None without a home."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(named) if named.startswith("/") else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / "openai-frontend" / "model-repositories"
