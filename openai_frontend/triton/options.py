"""The options of Triton's core."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from openai_frontend.config import model_folders
from openai_frontend.triton import _core
from openai_frontend.triton_interface import CACHES, REPO_AGENTS

logger = logging.getLogger(__name__)

ModelControlMode = Literal["none", "poll", "explicit"]
RateLimiterMode = Literal["off", "execution_count"]
LogFormat = Literal["default", "ISO8601"]
InstanceGroupKind = Literal["auto", "cpu", "gpu", "model"]

# The C API's numbers. `none` is implemented as `explicit` with all models at startup, so that the
# gateway can reload a model whose process died. `Server` rejects other requests in mode `none`.
_CONTROL_MODES: dict[str, int] = {"none": 2, "poll": 1, "explicit": 2}
_RATE_LIMITER_MODES: dict[str, int] = {"off": 0, "execution_count": 1}
_LOG_FORMATS: dict[str, int] = {"default": 0, "ISO8601": 1}
_INSTANCE_GROUP_KINDS: dict[str, int] = {"auto": 0, "cpu": 1, "gpu": 2, "model": 3}

ScopedSettings = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class RateLimiterResource:
    """A resource that instance groups share; device -1 means all devices."""

    name: str
    count: int
    device: int = -1


@dataclass(frozen=True, kw_only=True)
class ModelLoadDeviceLimit:
    """The fraction (0 to 1) of a device's memory that loading models may use."""

    kind: InstanceGroupKind
    device: int
    fraction: float


@dataclass(frozen=True, kw_only=True)
class Options:
    """All options of the core; None keeps the core's default."""

    model_repositories: Sequence[Path]
    library: Path | None = None
    server_id: str = "openai-frontend"

    model_control_mode: ModelControlMode = "none"
    startup_models: Sequence[str] = ("*",)  # explicit mode only; "*" is all
    strict_model_config: bool = False
    model_config_name: str | None = None
    model_namespacing: bool = False
    model_load_thread_count: int | None = None
    model_load_retry_count: int | None = None
    model_load_device_limits: Sequence[ModelLoadDeviceLimit] = ()
    repository_poll_s: float = 15.0  # poll mode only

    backend_directory: Path | None = None
    backend_config: ScopedSettings = field(default_factory=dict)  # backend -> setting -> value
    repo_agent_directory: Path | None = None
    host_policy: ScopedSettings = field(default_factory=dict)  # policy -> setting -> value

    rate_limiter_mode: RateLimiterMode | None = None
    rate_limiter_resources: Sequence[RateLimiterResource] = ()
    pinned_memory_pool_bytes: int | None = None
    cuda_memory_pool_bytes: Mapping[int, int] = field(default_factory=dict)  # device -> bytes
    cuda_virtual_address_bytes: Mapping[int, int] = field(default_factory=dict)
    min_supported_compute_capability: float | None = None
    buffer_manager_thread_count: int | None = None
    enable_peer_access: bool | None = None
    cache_config: Mapping[str, str] = field(default_factory=dict)  # cache -> JSON of its settings
    cache_directory: Path | None = None

    exit_timeout_s: int = 30
    strict_readiness: bool = True
    log_info: bool = False
    log_warn: bool = True
    log_error: bool = True
    log_verbose: int = 0
    log_format: LogFormat | None = None
    log_file: Path | None = None
    metrics: bool = True
    gpu_metrics: bool | None = None  # None: if there is a GPU
    cpu_metrics: bool | None = None
    metrics_interval_ms: int | None = None
    metrics_config: ScopedSettings = field(default_factory=dict)


# Options with the same name, type and arguments as the native setter.
_PLAIN = (
    "server_id",
    "strict_model_config",
    "model_config_name",
    "model_namespacing",
    "model_load_thread_count",
    "model_load_retry_count",
    "pinned_memory_pool_bytes",
    "min_supported_compute_capability",
    "buffer_manager_thread_count",
    "enable_peer_access",
    "exit_timeout_s",
    "strict_readiness",
    "log_info",
    "log_warn",
    "log_error",
    "log_verbose",
    "metrics",
    "gpu_metrics",
    "cpu_metrics",
    "metrics_interval_ms",
)
_PATHS = ("repo_agent_directory", "cache_directory", "log_file")
_ENUMS: dict[str, dict[str, int]] = {
    "model_control_mode": _CONTROL_MODES,
    "rate_limiter_mode": _RATE_LIMITER_MODES,
    "log_format": _LOG_FORMATS,
}
_TRIPLES = ("backend_config", "host_policy", "metrics_config")
_BY_DEVICE = ("cuda_memory_pool_bytes", "cuda_virtual_address_bytes")


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
    # The core never initializes these two: without a value a failing model would be retried
    # endlessly.
    core_options.model_load_retry_count(0)
    core_options.enable_peer_access(True)
    core_options.backend_directory(str(backend_directory))
    for repository in options.model_repositories:
        core_options.model_repository(str(repository))
    if options.gpu_metrics is None:
        core_options.gpu_metrics(has_gpu())
    if options.pinned_memory_pool_bytes is None and not has_gpu():
        core_options.pinned_memory_pool_bytes(0)
    if server is not None:
        _set_installed(core_options, server)
    _set_named(core_options, options)
    _set_lists(core_options, options)
    return core_options


def has_gpu() -> bool:
    """Whether the NVIDIA driver provides a device."""
    return Path("/dev/nvidiactl").exists()


def _set_installed(core_options: _core.ServerOptions, server: Path) -> None:
    if (caches := server / CACHES).is_dir():
        core_options.cache_directory(str(caches))
    if (agents := server / REPO_AGENTS).is_dir():
        core_options.repo_agent_directory(str(agents))


def _set_named(core_options: _core.ServerOptions, options: Options) -> None:
    for name in _PLAIN:
        if (value := getattr(options, name)) is not None:
            getattr(core_options, name)(value)
    for name in _PATHS:
        if (value := getattr(options, name)) is not None:
            getattr(core_options, name)(str(value))
    for name, numbers in _ENUMS.items():
        if (value := getattr(options, name)) is not None:
            getattr(core_options, name)(numbers[value])


def _set_lists(core_options: _core.ServerOptions, options: Options) -> None:
    if options.model_control_mode != "poll":
        for model in _startup_models(options):
            core_options.startup_model(model)
    for name in _TRIPLES:
        for scope, settings in getattr(options, name).items():
            for setting, value in settings.items():
                getattr(core_options, name)(scope, setting, value)
    for name in _BY_DEVICE:
        for device, size in getattr(options, name).items():
            getattr(core_options, name)(device, size)
    _set_limits(core_options, options)


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


def _set_limits(core_options: _core.ServerOptions, options: Options) -> None:
    for resource in options.rate_limiter_resources:
        core_options.rate_limiter_resource(resource.name, resource.count, resource.device)
    for limit in options.model_load_device_limits:
        kind = _INSTANCE_GROUP_KINDS[limit.kind]
        core_options.model_load_device_limit(kind, limit.device, limit.fraction)
    for cache, config in options.cache_config.items():
        core_options.cache_config(cache, config)
