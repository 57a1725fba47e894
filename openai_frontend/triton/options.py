"""The options of Triton's core."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from openai_frontend.config import model_folders
from openai_frontend.config.triton_options import (
    TRITON_OPTIONS,
    OptionTexts,
    arguments,
    with_defaults,
)
from openai_frontend.runtime.triton_interface import CACHES, REPO_AGENTS
from openai_frontend.triton import _core

logger = logging.getLogger(__name__)

ModelControlMode = Literal["none", "poll", "explicit"]

# The C API's numbers. `none` is implemented as `explicit` with all models at startup, so that the
# gateway can reload a model whose process died. `Server` rejects other requests in mode `none`.
_CONTROL_MODES: dict[str, int] = {"none": 2, "poll": 1, "explicit": 2}

ScopedSettings = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class Options:
    """All options of the core."""

    model_repositories: Sequence[Path]
    library: Path | None = None

    model_control_mode: ModelControlMode = "none"
    startup_models: Sequence[str] = ("*",)  # explicit mode only; "*" is all
    repository_poll_s: float = 15.0  # poll mode only

    backend_directory: Path | None = None
    backend_config: ScopedSettings = field(default_factory=dict)  # backend -> setting -> value
    cache_config: Mapping[str, str] = field(default_factory=dict)  # cache -> JSON of its settings

    exit_timeout_s: int = 30
    strict_readiness: bool = True
    metrics: bool = True
    metrics_config: ScopedSettings = field(default_factory=dict)
    triton_option: OptionTexts = field(default_factory=dict)  # tritonserver's flag -> values


def native(
    options: Options, backend_directory: Path, server: Path | None = None
) -> _core.ServerOptions:
    """Return the core's options object. `server` is a folder like /opt/tritonserver, whose caches
    and repository agents are used unless the options name others.

    With exit_on_error off, a model that does not load fails alone; the reason is in the model
    index.
    """
    core_options = _core.ServerOptions()
    core_options.exit_on_error(False)
    core_options.backend_directory(str(backend_directory))
    for repository in options.model_repositories:
        core_options.model_repository(str(repository))
    core_options.model_control_mode(_CONTROL_MODES[options.model_control_mode])
    if options.model_control_mode != "poll":
        for model in _startup_models(options):
            core_options.startup_model(model)
    core_options.exit_timeout_s(options.exit_timeout_s)
    core_options.strict_readiness(options.strict_readiness)
    core_options.metrics(options.metrics)
    _set_nested(core_options, options)
    if server is not None:
        _set_installed(core_options, server)
    _set_from_texts(core_options, options.triton_option)
    return core_options


def has_gpu() -> bool:
    """Whether the NVIDIA driver provides a device."""
    return Path("/dev/nvidiactl").exists()


def _set_installed(core_options: _core.ServerOptions, server: Path) -> None:
    if (caches := server / CACHES).is_dir():
        core_options.cache_directory(str(caches))
    if (agents := server / REPO_AGENTS).is_dir():
        core_options.repo_agent_directory(str(agents))


def _set_nested(core_options: _core.ServerOptions, options: Options) -> None:
    for scope, settings in options.backend_config.items():
        for setting, value in settings.items():
            core_options.backend_config(scope, setting, value)
    for scope, settings in options.metrics_config.items():
        for setting, value in settings.items():
            core_options.metrics_config(scope, setting, value)
    for cache, config in options.cache_config.items():
        core_options.cache_config(cache, config)


def _set_from_texts(core_options: _core.ServerOptions, given: OptionTexts) -> None:
    by_device = {"allow-gpu-metrics": ["true"]}
    if not has_gpu():
        by_device = {"allow-gpu-metrics": ["false"], "pinned-memory-pool-byte-size": ["0"]}
    for name, texts in with_defaults({**by_device, **given}).items():
        for text in texts if name in TRITON_OPTIONS else ():  # others are the gRPC server's
            getattr(core_options, TRITON_OPTIONS[name].setter)(*arguments(name, text))


def _startup_models(options: Options) -> Sequence[str]:
    """A core that loads `*` never becomes ready if one of the folders is not a model."""
    names = options.startup_models if options.model_control_mode == "explicit" else ("*",)
    if list(names) != ["*"]:
        return names
    models = model_folders.models(options.model_repositories)
    others = set(model_folders.subfolders(options.model_repositories)) - set(models)
    if not others:
        return names
    for path in sorted(others.intersection(model_folders.folders(options.model_repositories))):
        logger.warning("%s ignored: it has no config.pbtxt and no version folder to read", path)
    return list(dict.fromkeys(path.name for path in models))
