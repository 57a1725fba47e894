"""From settings to a running process: the socket, the core's options, the application, uvicorn."""

import errno
import faulthandler
import json
import logging
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Literal

import uvicorn

from openai_frontend.app import Gateway, create_app, create_transfer_app
from openai_frontend.cli import banner, cached_repository, grpc_server
from openai_frontend.config import grpc_options, model_folders
from openai_frontend.config.settings import Settings
from openai_frontend.lifespan import AppState
from openai_frontend.logs.engine_logs import TritonLogPipe, configure_vllm
from openai_frontend.middleware.headers import response_headers
from openai_frontend.runtime import compatibility
from openai_frontend.runtime.process_settings import keep_freed_memory, raise_nofile_limit
from openai_frontend.server import gc_tuning
from openai_frontend.server.certificates import Certificate
from openai_frontend.server.http_protocol import LimitedHttpProtocol, limited_protocol
from openai_frontend.server.internal_server import InternalServer, MetricsOnly
from openai_frontend.server.limits import ProtocolLimits
from openai_frontend.server.process import (
    GatewayProcess,
    Resources,
    ShutdownTimeouts,
)
from openai_frontend.server.systemd import SystemdNotifier
from openai_frontend.triton import Options, Server

logger = logging.getLogger(__name__)

_UNSENT_BYTES = 128 * 1024


def listen(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """A socket that listens; `reuse_port`: beside others of the same user that have it too.
    OSError where the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server(
        (host, port), family=family, backlog=2048, reuse_port=reuse_port
    )
    # Its connections have this from it: what a client does not read waits here, where it is
    # counted, and not in megabytes of the kernel's. What is under way does not count.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
    return listener


def require_free(host: str, port: int, *, reuse_port: bool = False) -> None:
    """OSError where the address cannot be had. Does not listen: among servers that share a port,
    the kernel would give it some of their clients.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse_port)
        probe.bind((host, port))


def listen_locally(path: Path) -> socket.socket:
    """A Unix socket for its owner and group. Replaces a socket on which no server listens."""
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise OSError(errno.EADDRINUSE, "another server listens there")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        path.chmod(0o660)
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    return listener


def build_app(settings: Settings) -> Gateway:
    """The application of this process, with its core. Raises UnsupportedPackage."""
    for overriding in (LimitedHttpProtocol, GatewayProcess, InternalServer):
        compatibility.require_same_parameters("uvicorn", overriding)
    keep_freed_memory()
    faulthandler.enable()  # a watchdog's SIGABRT, or a crash of native code, shows its stacks
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    configure_vllm(settings.log_format, exception_texts=settings.log_exception_texts)
    raise_nofile_limit(connection_limits(settings).most_connections)
    server = Server(_logging_as_set(settings, triton_options(settings)))
    # The pool of prompts bounds the threads that tokenize; libraries would add one for each core
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
    app = create_app(settings, server)
    gc_tuning.freeze_heap()  # and from now on loads cause no full collections
    # The longest pause comes before there is a stream
    app.state.startup.on_core = gc_tuning.freeze_heap
    if grpc_options.value(settings.triton_option, "exit-on-error"):
        app.state.startup.required = _loading(settings)
    app.router.lifespan_context = gc_tuning.freezing_heap(
        app.router.lifespan_context, app.state.registry, server.heartbeat
    )
    return app


def serve(
    settings: Settings,
    listener: socket.socket,
    metrics_listener: socket.socket | None = None,
    transfer_listener: socket.socket | None = None,
) -> int:
    """Serve until a signal or a failed start; return the exit code. Raises UnsupportedPackage."""
    app = build_app(settings)
    local = listener.family == socket.AF_UNIX
    warning = None if local else banner.exposure_warning(settings.host)
    if warning is not None and app.state.authenticator is None:
        logger.warning("%s", warning)
    process = create_process(app, settings, _listen_address(settings, listener))
    process.notifier = SystemdNotifier.from_environment(os.environ)
    process.authenticator = app.state.authenticator
    process.certificate = certificate(settings)
    process.serves_tensors = settings.enable_kserve
    # gRPC's library would write lines of its own format to stderr, and abort the process if the
    # Python backend forks for several models at once
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    process.grpc = grpc_server.build(settings, app)
    process.exit_without_models = cached_repository.is_generated(settings.repository_folders()[0])
    state: AppState = app.state.gateway
    if metrics_listener is not None:
        config = _uvicorn_config(MetricsOnly(app), settings, state, lifespan="off")
        heartbeat = state.server.heartbeat
        process.internal_servers.append(InternalServer(config, heartbeat, metrics_listener))
    if transfer_listener is not None:
        process.internal_servers.append(transfer_server(settings, state, transfer_listener))
    try:
        process.run([listener])
    finally:
        if settings.unix_socket is not None:
            settings.unix_socket.unlink(missing_ok=True)
    code = 0 if app.state.startup.failure is None else 1
    if state.server.outlives_stop:
        logging.shutdown()
        os._exit(code)
    return code


def transfer_server(settings: Settings, state: AppState, listener: socket.socket) -> InternalServer:
    """The server of a prefill server for its decode servers."""
    app = create_transfer_app(settings, state)
    config = _uvicorn_config(app, settings, state, lifespan="off")
    return InternalServer(config, state.server.heartbeat, listener)


def create_process(
    app: Gateway, settings: Settings, address: banner.ListenAddress
) -> GatewayProcess:
    state: AppState = app.state.gateway
    progress = banner.LoadProgress(sys.stderr, _loading(settings), state.server.load_phases)
    return GatewayProcess(
        _uvicorn_config(app, settings, state),
        Resources(state.server, state.registry, state.startup, state.drain_state),
        shutdown_timeouts=_shutdown_timeouts(settings),
        reporter=banner.StartupBanner(progress, address, settings.repository_folders()),
    )


def _shutdown_timeouts(settings: Settings) -> ShutdownTimeouts:
    return ShutdownTimeouts(settings.drain_delay_s, settings.graceful_shutdown_timeout_s)


def certificate(settings: Settings) -> Certificate | None:
    """None where the server speaks plain HTTP. Raises InvalidCertificate."""
    if settings.tls_certificate is None:
        return None
    return Certificate(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)


def _listen_address(settings: Settings, listener: socket.socket) -> banner.ListenAddress:
    if settings.unix_socket is not None:
        url = "http://localhost/v1"
    else:
        url = banner.address(settings.host, listener.getsockname()[1])
    if settings.tls_certificate is not None:
        url = url.replace("http:", "https:", 1)
    return banner.ListenAddress(url, settings.unix_socket)


def triton_options(settings: Settings) -> Options:
    """The core's options, in its own words."""
    startup_models = _startup_models(settings)
    return Options(
        model_repositories=settings.repository_folders(),
        library=settings.triton_library,
        model_control_mode=settings.model_control_mode if startup_models is None else "explicit",
        startup_models=startup_models or (),
        repository_poll_s=settings.repository_poll_s,
        backend_directory=settings.backend_directory,
        backend_config=settings.backend_config,
        cache_config={cache: json.dumps(config) for cache, config in settings.cache_config.items()},
        exit_timeout_s=settings.exit_timeout_s,
        strict_readiness=settings.strict_readiness,
        metrics=settings.metrics,
        metrics_config=settings.metrics_config,
        triton_option=settings.triton_option,
    )


def _logging_as_set(settings: Settings, options: Options) -> Options:
    """With JSON, the core logs to a pipe that turns its lines into JSON, unless it has a file."""
    if settings.log_format != "json" or "log-file" in options.triton_option:
        return options
    log = {"log-file": [str(TritonLogPipe().path)]}
    return replace(options, triton_option={**options.triton_option, **log})


def _uvicorn_config(
    app: object,
    settings: Settings,
    state: AppState,
    lifespan: Literal["on", "off"] = "on",
) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]  # FastAPI's own type is wider than uvicorn's
        loop="uvloop",
        http=limited_protocol(
            connection_limits(settings),
            state.metrics,
            root_path=settings.root_path,
            heartbeat=state.server.heartbeat,
        ),
        headers=response_headers(
            tls=settings.tls_certificate is not None, replica_name=settings.replica_name
        ),
        proxy_headers=False,  # `trusted_proxies` does this
        ws="none",
        lifespan=lifespan,
        log_config=None,
        access_log=False,  # ours has more fields, and no path (middleware/telemetry.py)
        server_header=False,
        timeout_keep_alive=settings.keep_alive_timeout_s,
    )


def connection_limits(settings: Settings) -> ProtocolLimits:
    """Connection limits from the settings."""
    names = (field.name for field in fields(ProtocolLimits))
    return ProtocolLimits(**{name: getattr(settings, name) for name in names})


def _startup_models(settings: Settings) -> Sequence[str] | None:
    """The models that the core loads at start in mode `explicit`, in which alone it leaves models
    out; None if it runs in another mode.
    """
    if settings.load_on_demand:
        return []
    explicit = settings.model_control_mode == "explicit"
    on_demand = settings.on_demand_models()
    if not on_demand:
        return settings.load_model if explicit else None
    if "*" not in settings.load_model:
        return settings.load_model
    waiting = {name for name, options in on_demand.items() if options.load_on_demand}
    return [name for name in _models(settings) if name not in waiting]


def _models(settings: Settings) -> list[str]:
    return sorted(path.name for path in model_folders.models(settings.repository_folders()))


def _loading(settings: Settings) -> Sequence[str]:
    """The models that load at start."""
    if settings.load_on_demand:
        return [name for name in settings.load_model if name != "*"]
    names = _startup_models(settings)
    return _models(settings) if names is None or "*" in names else names
