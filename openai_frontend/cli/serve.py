"""From settings to a running process: the socket, the core's options, the application, uvicorn."""

import json
import logging
import os
import socket
import sys
from pathlib import Path

import uvicorn

from openai_frontend.app import create_app
from openai_frontend.cli import announcement, garbage
from openai_frontend.cli.process import GatewayProcess
from openai_frontend.middleware.http_protocol import guarded_protocol
from openai_frontend.settings import Settings
from openai_frontend.triton import Options, Server
from openai_frontend.triton.options import ModelLoadDeviceLimit, RateLimiterResource

# Settings that are the core's options, under the same name or another
_SAME_NAME = (
    "server_id", "model_control_mode", "strict_model_config", "model_config_name",
    "model_namespacing", "model_load_thread_count", "model_load_retry_count", "repository_poll_s",
    "backend_directory", "backend_config", "repo_agent_directory", "host_policy",
    "rate_limiter_mode", "pinned_memory_pool_bytes", "cuda_memory_pool_bytes",
    "cuda_virtual_address_bytes", "min_supported_compute_capability",
    "buffer_manager_thread_count", "enable_peer_access", "cache_directory", "exit_timeout_s",
    "strict_readiness", "metrics", "gpu_metrics", "cpu_metrics", "metrics_interval_ms",
    "metrics_config",
)  # fmt: skip
_OTHER_NAME = {
    "model_repositories": "model_repository",
    "library": "triton_library",
    "log_info": "triton_log_info",
    "log_warn": "triton_log_warn",
    "log_error": "triton_log_error",
    "log_verbose": "triton_log_verbose",
    "log_file": "triton_log_file",
    "log_format": "triton_log_format",
}


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. OSError where the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=2048)


def serve(settings: Settings, listener: socket.socket) -> int:
    """Serves until a signal or a failed start; returns the exit code."""
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    server = Server(triton_options(settings))
    # The pool of prompts bounds the threads that tokenize; the library would add one for each core
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    app = create_app(settings, server)
    app.router.lifespan_context = garbage.settled(app.router.lifespan_context, app.state.registry)
    host, port = settings.host, listener.getsockname()[1]
    warning = announcement.exposure_warning(host)
    if warning is not None and app.state.keys is None:
        sys.stderr.write(warning)
    process = GatewayProcess(
        _uvicorn_config(app, settings),
        triton=server,
        registry=app.state.registry,
        startup=app.state.startup,
        progress=announcement.LoadProgress(sys.stderr, _loading(settings)),
        url=announcement.address(host, port),
    )
    process.keys = app.state.keys
    process.run([listener])
    return 0 if app.state.startup.failure is None else 1


def triton_options(settings: Settings) -> Options:
    """The core's options, in its own words."""
    names = {**{name: name for name in _SAME_NAME}, **_OTHER_NAME}
    return Options(
        startup_models=[] if settings.load_on_demand else settings.load_model,
        rate_limiter_resources=[
            RateLimiterResource(name=each.name, count=each.count, device=each.device)
            for each in settings.rate_limiter_resource
        ],
        model_load_device_limits=[
            ModelLoadDeviceLimit(kind="gpu", device=device, fraction=fraction)
            for device, fraction in settings.model_load_gpu_limit.items()
        ],
        cache_config={cache: json.dumps(config) for cache, config in settings.cache_config.items()},
        **{option: getattr(settings, name) for option, name in names.items()},
    )


def _uvicorn_config(app: object, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]  # FastAPI's own type is wider than uvicorn's
        loop="uvloop",
        http=guarded_protocol(settings.max_header_bytes),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=settings.access_log,
        server_header=False,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=settings.shutdown_grace_s,
    )


def _loading(settings: Settings) -> list[str]:
    """The models that the core will load."""
    if settings.load_on_demand:
        return []
    if settings.model_control_mode == "explicit" and "*" not in settings.load_model:
        return settings.load_model
    folders = (folder for path in settings.model_repository for folder in Path(path).iterdir())
    return sorted(folder.name for folder in folders if folder.is_dir())
