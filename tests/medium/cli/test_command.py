"""The command's output without a server."""

import dataclasses
import platform
import re
import socket
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import fastapi
import pytest
import uvicorn

from openai_frontend import __version__
from openai_frontend.cli import command, main
from openai_frontend.cli.serve import triton_options
from openai_frontend.config.loader import load, options
from openai_frontend.config.settings import GROUPS, Settings
from openai_frontend.routers.routing import RouteTable
from openai_frontend.runtime import compatibility
from openai_frontend.serving.constraints import plugin
from openai_frontend.triton import Options
from tests.process_state import log_restored


@pytest.fixture(autouse=True)
def _own_log() -> Iterator[None]:
    """`serve` configures the log of its process, which here is the test process."""
    with log_restored():
        yield


def test_version_lists_all_components(capsys: pytest.CaptureFixture[str]) -> None:
    """The gateway, Triton's library and Python have one line each."""

    code = main(["version"])
    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert lines[0] == f"openai-frontend {__version__}"
    assert lines[1].startswith("Triton library with C API 1.")
    assert lines[-1] == f"Python {platform.python_version()}"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command, it is printed with exit code 2."""

    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert "'openai-frontend serve MODEL'" in shown
    for name in ("serve", "check", "init-repo", "keys", "top", "version"):
        assert f"\n    {name}" in shown

    assert main([]) == 2
    assert capsys.readouterr().err == shown


@pytest.mark.parametrize("name", ["serve", "check", "init-repo"])
def test_each_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A description comes before the options."""

    with pytest.raises(SystemExit):
        main([name, "--help"])
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: openai-frontend {name}")
    assert "%(" not in shown
    assert "==SUPPRESS==" not in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serv"], "openai-frontend: COMMAND: unknown value 'serv'; did you mean serve?"),
        (["--prot"], "openai-frontend: unknown option --prot"),
        (["foo"], "openai-frontend: COMMAND: 'foo' is not one of serve, check, init-repo, keys,"),
        (
            ["serve", "--prot", "9"],
            "openai-frontend serve: unknown option --prot; did you mean --port?",
        ),
        (["serve", "--port"], "openai-frontend serve: --port: expected one argument"),
        (["check", "a", "b"], "openai-frontend check: one argument too many: 'b'"),
        (["init-repo"], "openai-frontend init-repo: the following arguments are required: MODEL"),
        (["init-repo", "a", "--max-model-len", "x"], "openai-frontend init-repo: --max-model-len:"),
    ],
)
def test_invalid_argument_is_one_line_and_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line says what is wrong, suggests a similar option, and says how to get help."""

    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.count("\n") == 1
    assert said.startswith(message)
    assert said.endswith(" --help)\n")


@pytest.mark.parametrize("flags", [["--api-key", "a"], ["--api-key=a"]])
def test_argument_after_an_api_key_is_not_shown(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be another key: vLLM's flag takes several."""

    with pytest.raises(SystemExit):
        main(["serve", "org/m", *flags, "sk-canary"])
    assert capsys.readouterr().err == (
        "openai-frontend serve: one argument too many; repeat --api-key for each key "
        "(see openai-frontend serve --help)\n"
    )


def test_interrupt_during_imports_is_quiet(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C during imports exits with the shell's code for SIGINT and no traceback."""

    def interrupted(arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "main", interrupted)
    assert main(["serve"]) == 130
    assert capsys.readouterr().err == ""


def test_help_lists_every_flag_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    """Flags and groups are those of the settings."""

    with pytest.raises(SystemExit):
        main(["serve", "--help=all"])
    words = capsys.readouterr().out
    expected = {option.flag for option in options()} | {f"{option.group}:" for option in options()}
    assert {word for word in expected if word not in words} == set()


def test_help_lists_the_common_flags(capsys: pytest.CaptureFixture[str]) -> None:
    """The last line says how to see the others."""

    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    shown = capsys.readouterr().out
    flags = set(re.findall(r"^  (--[a-z-]+)", shown, re.MULTILINE))
    assert 25 <= len(flags) <= 35
    assert {"--model-repository", "--port", "--triton-option"} <= flags
    assert shown.splitlines()[-1].startswith("--help=all shows all options; --help=GROUP")


@pytest.mark.parametrize("group", GROUPS)
def test_help_of_a_group_lists_its_flags_only(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["serve", f"--help={group}"])
    flags = set(re.findall(r"^  (--[a-z0-9-]+)", capsys.readouterr().out, re.MULTILINE))
    expected = {option.flag for option in options() if option.help_group == group}
    assert flags == expected | {"--config"}


def test_help_of_an_unknown_group_names_the_groups(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--help=limit"])
    assert ended.value.code == 2
    assert "--help: unknown group 'limit'; did you mean limits?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "x"], "openai-frontend: --port: must be a whole number (got 'x')"),
        (["--model-repository", "nowhere"], "model_repository: nowhere is not a folder"),
        (
            ["--model-repository", ".", "--chat-template", "demo=nope"],
            "openai-frontend: chat_template: nope: No such file or directory",
        ),
        (
            ["--model-repository", ".", "--chat-template", "tests/data/broken.jinja"],
            "tests/data/broken.jinja: line 2 of the chat template: ",
        ),
        (
            ["--model-repository", ".", "--tiktoken-vocabulary", "nope"],
            "openai-frontend: tiktoken_vocabulary: nope: No such file or directory",
        ),
        (
            ["--model-repository", ".", "--tiktoken-vocabulary", "README.md"],
            "tiktoken_vocabulary: README.md: line 1 is not a valid tiktoken entry",
        ),
    ],
)
def test_invalid_setting_is_one_line_and_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing starts, and the one line names the setting."""

    code, output = main(["serve", *arguments]), capsys.readouterr().err
    assert code == 2
    assert output.count("\n") == 1
    assert message in output


def test_missing_model_to_load_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server would listen without it."""

    (tmp_path / "demo" / "1").mkdir(parents=True)
    options = ["--model-repository", str(tmp_path), "--model-control-mode", "explicit"]

    assert main(["serve", *options, "--load-model", "dmo"]) == 2
    assert capsys.readouterr().err == (
        f"openai-frontend: load_model: no model 'dmo' in {tmp_path}; did you mean 'demo'?\n"
    )


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_models_to_load_are_refused_in_modes_that_load_all(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The core would ignore the names and load every model."""

    (tmp_path / "demo" / "1").mkdir(parents=True)
    options = ["--model-repository", str(tmp_path), "--port=0", "--model-control-mode", mode]

    assert main(["serve", *options, "--load-model", "demo"]) == 2
    assert capsys.readouterr().err == (
        f"openai-frontend: load_model: mode '{mode}' loads every model. "
        "Add --model-control-mode explicit to load only the named ones.\n"
    )


def test_port_in_use_is_one_line_and_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the address."""

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code = main(["serve", "--model-repository", str(tmp_path), "--port", port])
    expected = f"openai-frontend: cannot listen on 127.0.0.1:{port}: Address already in use\n"
    assert (code, capsys.readouterr().err) == (1, expected)


def test_grpc_port_in_use_is_one_line_and_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        options = ["--model-repository", str(tmp_path), f"--grpc-port={port}", "--port=0"]
        assert main(["serve", *options]) == 1

    error = capsys.readouterr().err
    assert f"openai-frontend: cannot listen on 127.0.0.1:{port}: Address already in use" in error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--grpc-use-ssl=1", "triton_option: grpc-server-cert: required by grpc-use-ssl"),
        (
            "--grpc-use-ssl-mutual=1 --grpc-server-cert=c --grpc-server-key=k",
            "triton_option: grpc-root-cert: required by grpc-use-ssl-mutual",
        ),
        ("--grpc-server-key=k", "triton_option: grpc-server-key: needs grpc-use-ssl=true"),
        ("--grpc-use-ssl=1 --grpc-server-cert=/no --grpc-server-key=/no", "grpc-server-cert: /no"),
    ],
)
def test_incomplete_tls_of_grpc_is_one_line_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str, message: str
) -> None:
    """The line names the option that is missing, or that has no effect."""

    words = ["--model-repository", str(tmp_path), "--grpc-port=0", "--port=0", *options.split()]
    assert main(["serve", *words]) == 2
    error = capsys.readouterr().err
    assert (message in error, error.count("\n")) == (True, 1), error


def test_grpc_without_its_extra_is_one_line_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)

    assert main(["serve", "--model-repository", str(tmp_path), "--grpc-port=8001"]) == 2
    assert capsys.readouterr().err == (
        "openai-frontend: grpc-port: grpcio is not installed; install openai-frontend[grpc]\n"
    )


def test_broken_plug_in_is_one_line_and_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server does not start without an installed plug-in."""

    point = EntryPoint("mine", "no_such_package:Plugin", plugin.GROUP)
    monkeypatch.setattr(plugin, "entry_points", lambda group: [point])
    plugin.installed.cache_clear()
    code = main(["serve", "--model-repository", str(tmp_path), "--port", "0"])
    assert (code, capsys.readouterr().err) == (
        1,
        "openai-frontend: cannot load a constraint plug-in: "
        "ModuleNotFoundError: No module named 'no_such_package'\n",
    )


@pytest.mark.parametrize(
    ("changed", "value", "package", "reason"),
    [
        (
            "openai_frontend.cli.serve.serve",
            lambda *_, **__: RouteTable().load([]),
            fastapi,
            "the route table is empty",
        ),
        (
            "uvicorn.Server.shutdown",
            lambda self: None,
            uvicorn,
            "uvicorn.server.Server.shutdown takes (self) instead of (self, sockets)",
        ),
        (
            "uvicorn.protocols.http.httptools_impl.HttpToolsProtocol._start_asgi_task",
            None,
            uvicorn,
            "uvicorn.protocols.http.httptools_impl.HttpToolsProtocol has no _start_asgi_task",
        ),
    ],
    ids=["fastapi", "changed method", "missing method"],
)
def test_unsupported_package_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changed: str,
    value: Any,
    package: Any,
    reason: str,
) -> None:
    """The server does not start, and says what has changed and which version to install."""

    if value is None:
        monkeypatch.delattr(changed)
    else:
        monkeypatch.setattr(changed, value)
    code = main(["serve", "--model-repository", str(tmp_path), "--port", "0"])
    assert (code, capsys.readouterr().err) == (
        1,
        f"openai-frontend: {package.__name__} {package.__version__} is not supported: {reason}."
        f" Install '{compatibility.supported(package.__name__)}'.\n",
    )


def test_every_option_of_the_core_has_a_setting() -> None:
    """A changed setting changes the core's options."""

    changed = {
        option: value
        for option, value in dataclasses.asdict(triton_options(ALL_CHANGED)).items()
        if value == dataclasses.asdict(DEFAULT)[option]
    }
    assert changed == {}


DEFAULT = Options(model_repositories=[])
ALL_CHANGED: Settings = load(
    flags={
        "model_repository": ["r"],
        "triton_library": "l",
        "model_control_mode": "explicit",
        "load_model": ["m"],
        "repository_poll_s": 1,
        "backend_directory": "b",
        "backend_config": ["b:k=v"],
        "cache_config": ["local:size=1"],
        "exit_timeout_s": 1,
        "strict_readiness": False,
        "metrics": False,
        "metrics_config": ["m:k=v"],
        "triton_option": ["id=s"],
    }
)


def test_cache_settings_are_passed_as_json() -> None:
    """The core expects one JSON object of strings per cache."""

    assert triton_options(ALL_CHANGED).cache_config == {"local": '{"size": "1"}'}
