"""The agents that tests run: a program with each API that it speaks is one row."""

import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from openai_frontend.cli.connect.agents import AGENTS as AGENTS_BY_NAME
from openai_frontend.cli.connect.configuration import AgentModel, GatewayAccess
from tests.coding_agents.agent import (
    CONTEXT_TOKENS,
    KEY,
    MODEL,
    OUTPUT_TOKENS,
    Agent,
    Api,
    Call,
    Folders,
)

KEY_VARIABLE = "LOCAL_KEY"
DESCRIBED = AgentModel(name=MODEL, context_tokens=CONTEXT_TOKENS, output_tokens=OUTPUT_TOKENS)
SWITCHED_OFF = ("DISABLE_AUTOUPDATER", "DISABLE_ERROR_REPORTING", "DISABLE_TELEMETRY")
CATALOGUE = 'model_catalog_json = "catalog.json"\n'


def configure(name: str, api: Api, url: str, folders: Folders) -> dict[str, str]:
    """Write what `openai-frontend connect` writes; returns environment variables."""
    spec, folder = AGENTS_BY_NAME[name], folders.home / name
    folder.mkdir()
    access = GatewayAccess(url=url, key_variable=KEY_VARIABLE)
    for file, content in spec.files(api, DESCRIBED, access).items():
        (folder / file).write_text(content)
    return {**spec.environment(str(folder)), KEY_VARIABLE: KEY}


def configure_pi(api: Api, url: str, folders: Folders) -> Mapping[str, str]:
    return {**configure("pi", api, url, folders), "PI_OFFLINE": "1"}


def configure_codex(catalog: bool, url: str, folders: Folders) -> Mapping[str, str]:
    environment = configure("codex", "responses", url, folders)
    if not catalog:
        path = folders.home / "codex" / "config.toml"
        path.write_text(path.read_text().replace(CATALOGUE, ""))
    return environment


def configure_claude_code(url: str, folders: Folders) -> Mapping[str, str]:
    """The variables that a shell reads from the file. A second run is in the first one's folder."""
    folder = folders.home / "claude"
    if not folder.exists():
        configure("claude", "messages", url, folders)
    read = subprocess.run(
        ["/bin/sh", "-c", ". ./claude.env && /usr/bin/env -0"],
        cwd=folder,
        env={KEY_VARIABLE: KEY},
        capture_output=True,
        text=True,
        check=True,
    )
    exported = dict(line.split("=", 1) for line in read.stdout.split("\0") if line)
    exported.pop("PWD")
    silent = dict.fromkeys(SWITCHED_OFF, "1")
    return {**exported, **silent, "CLAUDE_CONFIG_DIR": str(folder)}


def pi(api: Api) -> Agent:
    def edit(project: Path, name: str, old: str, new: str) -> Call:
        return "edit", {"path": name, "edits": [{"oldText": old, "newText": new}]}

    return Agent(
        name="pi",
        package="@earendil-works/pi-coding-agent",
        program=".bin/pi",
        api=api,
        configure=partial(configure_pi, api),
        arguments=(
            *AGENTS_BY_NAME["pi"].start.format(model=MODEL).split()[1:],
            *("--thinking", "medium"),
            *("--no-session", "--offline", "--print"),
        ),
        run_command=lambda command: ("bash", {"command": command}),
        read=lambda project, name: ("read", {"path": name}),
        edit=edit,
    )


def qwen(api: Api) -> Agent:
    def run_command(command: str) -> Call:
        return "run_shell_command", {"command": command, "is_background": False}

    def edit(project: Path, name: str, old: str, new: str) -> Call:
        arguments = {"file_path": str(project / name), "old_string": old, "new_string": new}
        return "edit", arguments

    return Agent(
        name="qwen-code",
        package="@qwen-code/qwen-code",
        program=".bin/qwen",
        api=api,
        configure=partial(configure, "qwen", api),
        arguments=("--yolo", "--prompt"),
        run_command=run_command,
        read=lambda project, name: ("read_file", {"file_path": str(project / name)}),
        edit=edit,
    )


def opencode(api: Api) -> Agent:
    def edit(project: Path, name: str, old: str, new: str) -> Call:
        arguments = {"filePath": str(project / name), "oldString": old, "newString": new}
        return "edit", arguments

    return Agent(
        name="opencode",
        package="opencode-ai",
        program="opencode-linux-x64/bin/opencode",
        api=api,
        configure=partial(configure, "opencode", api),
        arguments=("run",),
        run_command=lambda command: ("bash", {"command": command, "description": "Runs it"}),
        read=lambda project, name: ("read", {"filePath": str(project / name)}),
        edit=edit,
    )


def codex(*, catalog: bool) -> Agent:
    def edit(project: Path, name: str, old: str, new: str) -> Call:
        hunk = "\n".join([*(f"-{line}" for line in old.splitlines()),
                          *(f"+{line}" for line in new.splitlines())])  # fmt: skip
        patch = f"*** Begin Patch\n*** Update File: {name}\n@@\n{hunk}\n*** End Patch\n"
        if catalog:
            return "apply_patch", {"input": patch}
        return run_command(f"apply_patch <<'END'\n{patch}END")  # its shell has the program

    def run_command(command: str) -> Call:
        return "exec_command", {"cmd": command}

    return Agent(
        name="codex",
        package="@openai/codex",
        program=".bin/codex",
        api="responses",
        configure=partial(configure_codex, catalog),
        arguments=(
            "exec", "--skip-git-repo-check", "--json", "--dangerously-bypass-approvals-and-sandbox",
            *("-c", "model_providers.local.request_max_retries=0"),
            *("-c", "model_providers.local.stream_max_retries=0"),
        ),
        run_command=run_command,
        read=lambda project, name: run_command(f"cat {name}"),
        edit=edit,
        variant="catalogue" if catalog else "",
    )  # fmt: skip


def claude_code() -> Agent:
    def edit(project: Path, name: str, old: str, new: str) -> Call:
        arguments = {"file_path": str(project / name), "old_string": old, "new_string": new}
        return "Edit", arguments

    return Agent(
        name="claude-code",
        package="@anthropic-ai/claude-code",
        program="@anthropic-ai/claude-code-linux-x64/claude",
        api="messages",
        configure=configure_claude_code,
        arguments=("--allowedTools", "Bash,Edit,Read", "--print"),
        run_command=lambda command: ("Bash", {"command": command, "description": "Runs it"}),
        read=lambda project, name: ("Read", {"file_path": str(project / name)}),
        edit=edit,
        manifest="claude-code",
    )


APIS: tuple[Api, ...] = ("chat", "responses", "messages")
AGENTS = [
    codex(catalog=False),
    codex(catalog=True),
    *map(pi, APIS),
    *map(qwen, APIS),
    *map(opencode, APIS),
]
BY_ID = {"-".join(filter(None, (each.name, each.api, each.variant))): each for each in AGENTS}
# Its licence is proprietary: only `make test-claude-code` installs it, and no test data has it
CLAUDE_CODE = claude_code()
