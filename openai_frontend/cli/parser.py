"""The commands and options of the command line, with their help."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from openai_frontend.cli import init_repo, keys, ray_init
from openai_frontend.cli.connect import command as connect
from openai_frontend.cli.flags.command_line import CommandLine, OwnOptions, rewrite
from openai_frontend.cli.flags.similar import similar
from openai_frontend.config.loader import Option, options
from openai_frontend.config.settings import GROUPS
from openai_frontend.errors import did_you_mean

Commands = Any  # the result of `add_subparsers`, which has no public name


def parser() -> argparse.ArgumentParser:
    whole = CommandLineParser(
        prog="openai-frontend",
        description="An OpenAI-compatible gateway with Triton Inference Server in its own process.",
        epilog="To get started, run 'openai-frontend serve MODEL' with a name on Hugging Face's "
        "hub (ORG/MODEL) or a folder of weights.",
        allow_abbrev=False,
    )
    whole.add_argument(
        "--version", dest="command", action="store_const", const="version", help=_VERSIONS
    )
    commands = whole.add_subparsers(dest="command", metavar="COMMAND")
    _add_serve(commands)
    _add_check(commands)
    init = commands.add_parser(
        "init-repo",
        help="write a model repository for a Hugging Face model",
        description="Write a complete model repository for a Hugging Face model, and check it. "
        "Downloads nothing. Exit code 3: files from NVIDIA are still missing.",
        usage="openai-frontend init-repo MODEL [--kind KIND] [--OPTION VALUE ...]",
        allow_abbrev=False,
    )
    init_repo.add_arguments(init)
    keys.add_arguments(commands.add_parser("keys", help="add, list and revoke API keys"))
    ray_init.add_arguments(
        commands.add_parser("ray", help="run several gateways with Ray Serve (docs/ray.md)")
    )
    commands.add_parser(
        "install-core",
        help="install Triton's library in this Python environment",
        description="Run pip to install the wheel that contains Triton's library, and print the "
        "command before. Container images have the library.",
        allow_abbrev=False,
    )
    _add_top(commands)
    connect.add_arguments(
        commands.add_parser(
            "connect",
            help="print or write a coding agent's configuration for a running server",
            description="Print or write the configuration of a coding agent, made from the models "
            "of a running server, and the command that starts the agent with it. The agent's own "
            "configuration does not change.",
            allow_abbrev=False,
        )
    )
    _add_completions(commands)
    commands.add_parser("version", help=_VERSIONS)
    return whole


def _add_serve(commands: Commands) -> None:
    serve = commands.add_parser(
        "serve",
        help="serve a model, or the models of a repository",
        description="Serve one model with vLLM, or the models of a Triton model repository. "
        "With MODEL, engine flags of `vllm serve` such as --max-model-len are accepted too.",
        epilog=_SOURCES,
        usage="openai-frontend serve [MODEL] [--config PATH] [--SETTING VALUE ...]",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        add_help=False,
    )
    serve.add_argument(
        "-h",
        "--help",
        action=_SettingsHelp,
        nargs="?",
        const="common",
        metavar="GROUP",
        help="show the common options, those of a group, or all of them, and exit",
    )
    serve.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        default=None,
        help="a folder of weights, a name on Hugging Face's hub (ORG/MODEL), or a model "
        "repository. Default: the models of --model-repository.",
    )
    serve.rewrite = rewrite
    _add_settings(serve, options())


def _add_check(commands: Commands) -> None:
    check = commands.add_parser(
        "check",
        help="report how a model would be served, and what will not work",
        description="Report how a model would be served, why, and what will not work, from its "
        "files alone: nothing is started. Exit code 1: the model cannot be served.",
        epilog=_SOURCES,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    check.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        default=None,
        help="name of a model in a repository, its folder, a folder of weights for `serve MODEL`, "
        "or the gateway.yaml of `ray init`. Default: all models.",
    )
    check.add_argument("--json", dest="as_json", action="store_true", help="write JSON")
    _add_settings(check, [option for option in options() if option.name in _CHECKED])


def _add_top(commands: Commands) -> None:
    top = commands.add_parser(
        "top",
        help="monitor a running gateway",
        description="Show requests, tokens, latencies and queues of each model, updated every "
        "second, of one gateway or of several together. Rates and quantiles cover the last ten "
        "seconds. Press Ctrl-C to exit.",
        allow_abbrev=False,
    )
    top.add_argument(
        "url",
        metavar="URL",
        nargs="*",
        default=[_TOP_URL],
        help=f"gateway URL; several are shown together. Default: {_TOP_URL}.",
    )
    top.add_argument(
        "--key-file",
        type=Path,
        metavar="PATH",
        help="file that contains only an API key with the scopes metrics and models. "
        "Default: the key in $OPENAI_API_KEY, if set.",
    )
    top.add_argument("--unix-socket", type=Path, metavar="PATH", help="Unix socket to connect to")
    top.add_argument(
        "--ca", type=Path, metavar="PATH", help="CA bundle (PEM) that verifies the gateway"
    )
    top.add_argument(
        "--certificate",
        type=Path,
        metavar="PATH",
        help="client certificate and its key (PEM), for a gateway with tls_client_ca",
    )
    top.add_argument(
        "--interval",
        type=_interval,
        default=1.0,
        metavar="SECONDS",
        help="seconds between updates, 0.1 to 3600. Default: 1.",
    )
    top.add_argument("--once", action="store_true", help="measure for one second, then exit")
    top.add_argument(
        "--json", dest="as_json", action="store_true", help="write one JSON object per update"
    )


def _add_completions(commands: Commands) -> None:
    completions = commands.add_parser(
        "completions",
        help="print the completion of commands and options for a shell",
        description="Print a script that completes all commands and options in a shell "
        "(docs/install.md).",
        allow_abbrev=False,
    )
    completions.add_argument("shell", metavar="SHELL", choices=_SHELLS, help=" or ".join(_SHELLS))


_SHELLS = ("bash", "zsh", "fish")


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 0.1 to 3600")
    return seconds


_TOP_URL = "http://127.0.0.1:9000"

_VERSIONS = "print the versions of the gateway, Triton, vLLM and Python"

_SOURCES = (
    "Each option is also an environment variable (OPENAI_FRONTEND_PORT for --port) and a YAML key "
    "(port). A flag wins over the environment, which wins over the file."
)

# The settings that `check` uses
_CHECKED = {
    "model_repository", "served_model_name", "engine_arg", "model_option", "chat_template",
    "tool_call_parser", "reasoning_parser", "backend_directory", "allowed_media_domains",
}  # fmt: skip


# The settings of `serve --help`
_COMMON = {
    "model_repository", "served_model_name", "engine_arg", "model_control_mode", "load_model",
    "enable_model_management", "load_on_demand", "model_option", "host", "port", "unix_socket",
    "tls_certificate", "tls_key", "root_path", "graceful_shutdown_timeout_s", "request_timeout_s",
    "trusted_proxies", "log_level", "log_format", "access_log", "otlp_endpoint", "keys_file",
    "api_key", "max_body_bytes", "max_concurrent_requests", "max_queue_size", "chat_template",
    "tool_call_parser", "reasoning_parser", "backend_directory", "triton_option", "metrics_port",
}  # fmt: skip


class _SettingsHelp(argparse.Action):
    """Prints the common settings, those of one group, or all."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: Any,
        values: Any,
        option_string: Any = None,
    ) -> NoReturn:
        shown = _settings_of(values)
        if not shown:
            known = ["all", *GROUPS]
            guess = did_you_mean(values, known, quote="") or f"; use one of {', '.join(known)}"
            parser.error(f"--help: unknown group '{values}'{guess}")
        hidden = {option.name for option in options()} - shown
        for action in parser._actions:
            if action.dest in hidden:
                action.help = argparse.SUPPRESS
        parser.print_help()
        sys.stdout.write(
            f"\n--help=all shows all options; --help=GROUP those of a group: {', '.join(GROUPS)}\n"
        )
        parser.exit()


def _settings_of(group: str) -> set[str]:
    """Empty if there is no such group."""
    if group == "common":
        return _COMMON
    return {option.name for option in options() if group in ("all", option.help_group)}


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
    text = option.field.description or ""
    default = option.default_text
    return (f"{text} Default: {default}." if default else text).replace("%", "%%")


# Options whose values no message may show: an unexpected argument may be such a value
_SECRET = frozenset({"--api-key"})


class CommandLineParser(argparse.ArgumentParser):
    """argparse with errors of one line that suggest what was meant. Subcommands use it too."""

    # Reads flags of other servers
    rewrite: Callable[[Sequence[str], OwnOptions], CommandLine] | None = None

    def error(self, message: str) -> NoReturn:
        """Exits with code 2."""
        reason = message.removeprefix("argument ")
        self.exit(2, f"{self.prog}: {reason} (see {self.prog} --help)\n")

    def parse_known_args(  # type: ignore[override]  # never called with a namespace of its own
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Rejects unknown arguments in the subcommand that received them."""
        if self.rewrite is not None:
            args = self._rewritten(self.rewrite(args or (), self._option_string_actions))
        known, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(self._unknown(rest, args or ()))
        return known, rest

    def _rewritten(self, line: CommandLine) -> list[str]:
        for note in line.notes:
            sys.stderr.write(f"openai-frontend: {note}\n")
        if line.problems:
            self.exit(2, line.report(self.prog))
        return line.words

    def _unknown(self, rest: Sequence[str], args: Sequence[str]) -> str:
        names = [word.partition("=")[0] for word in rest if word.startswith("-")]
        if not names:
            if _SECRET.intersection(each.partition("=")[0] for each in args):
                return "one argument too many; repeat --api-key for each key"
            return f"one argument too many: '{rest[0]}'"
        return "; ".join(map(self._unknown_option, names))

    def _unknown_option(self, name: str) -> str:
        guess = similar(name, self._option_string_actions)
        return f"unknown option {name}" + (f"; did you mean {guess}?" if guess else "")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(each) for each in action.choices]
            if guess := did_you_mean(str(value), known, quote=""):
                raise argparse.ArgumentError(action, f"unknown value '{value}'{guess}")
            raise argparse.ArgumentError(action, f"'{value}' is not one of {', '.join(known)}")
