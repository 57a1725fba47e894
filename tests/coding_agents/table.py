"""The agents that tests run: a program with each API that it speaks is one row."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

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

PI_APIS: dict[Api, str] = {
    "chat": "openai-completions",
    "responses": "openai-responses",
    "messages": "anthropic-messages",
}
QWEN_APIS: dict[Api, tuple[str, str]] = {
    "chat": ("openai", "OPENAI"),
    "responses": ("openai-responses", "OPENAI"),
    "messages": ("anthropic", "ANTHROPIC"),
}
OPENCODE_APIS: dict[Api, str] = {
    "chat": "@ai-sdk/openai-compatible",
    "responses": "@ai-sdk/openai",
    "messages": "@ai-sdk/anthropic",
}
CODEX_CONFIG = """\
model = "{model}"
model_provider = "local"
web_search = "disabled"
{catalog}
[model_providers.local]
name = "local"
base_url = "{url}/v1"
env_key = "LOCAL_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""


def base_url(url: str, api: Api) -> str:
    """Anthropic's clients add /v1 themselves."""
    return url if api == "messages" else f"{url}/v1"


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1))


def configure_pi(api: Api, url: str, folders: Folders) -> Mapping[str, str]:
    model = {
        "id": MODEL,
        "reasoning": True,
        "contextWindow": CONTEXT_TOKENS,
        "maxTokens": OUTPUT_TOKENS,
    }
    provider = {
        "baseUrl": base_url(url, api), "api": PI_APIS[api], "apiKey": KEY, "models": [model]
    }  # fmt: skip
    write_json(folders.home / "pi" / "models.json", {"providers": {"local": provider}})
    return {"PI_CODING_AGENT_DIR": str(folders.home / "pi"), "PI_OFFLINE": "1"}


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
            *("--provider", "local", "--model", MODEL, "--thinking", "medium"),
            *("--no-session", "--offline", "--print"),
        ),
        run_command=lambda command: ("bash", {"command": command}),
        read=lambda project, name: ("read", {"path": name}),
        edit=edit,
    )


def configure_qwen(api: Api, url: str, folders: Folders) -> Mapping[str, str]:
    settings = {
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False},
    }
    write_json(folders.home / ".qwen" / "settings.json", settings)
    prefix = QWEN_APIS[api][1]
    return {
        f"{prefix}_API_KEY": KEY, f"{prefix}_BASE_URL": base_url(url, api),
        f"{prefix}_MODEL": MODEL,
    }  # fmt: skip


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
        configure=partial(configure_qwen, api),
        arguments=("--auth-type", QWEN_APIS[api][0], "--model", MODEL, "--yolo", "--prompt"),
        run_command=run_command,
        read=lambda project, name: ("read_file", {"file_path": str(project / name)}),
        edit=edit,
    )


def configure_opencode(api: Api, url: str, folders: Folders) -> Mapping[str, str]:
    limits = {"context": CONTEXT_TOKENS, "output": OUTPUT_TOKENS}
    model = {"name": MODEL, "tool_call": True, "reasoning": True, "limit": limits}
    config = {
        "provider": {
            "local": {
                "npm": OPENCODE_APIS[api],
                "options": {"baseURL": f"{url}/v1", "apiKey": KEY},
                "models": {MODEL: model},
            }
        },
        "autoupdate": False,
        "share": "disabled",
    }
    path = folders.home / "opencode.json"
    write_json(path, config)
    return {"OPENCODE_CONFIG": str(path), "OPENCODE_DISABLE_MODELS_FETCH": "1"}


def opencode(api: Api) -> Agent:
    def edit(project: Path, name: str, old: str, new: str) -> Call:
        arguments = {"filePath": str(project / name), "oldString": old, "newString": new}
        return "edit", arguments

    return Agent(
        name="opencode",
        package="opencode-ai",
        program="opencode-linux-x64/bin/opencode",
        api=api,
        configure=partial(configure_opencode, api),
        arguments=("run", "--model", f"local/{MODEL}"),
        run_command=lambda command: ("bash", {"command": command, "description": "Runs it"}),
        read=lambda project, name: ("read", {"filePath": str(project / name)}),
        edit=edit,
    )


def configure_codex(catalog: bool, url: str, folders: Folders) -> Mapping[str, str]:
    home = folders.home / "codex"
    line = f'model_catalog_json = "{home / "catalog.json"}"' if catalog else ""
    home.mkdir()
    (home / "config.toml").write_text(CODEX_CONFIG.format(model=MODEL, catalog=line, url=url))
    if catalog:
        write_json(home / "catalog.json", {"models": [codex_model()]})
    return {"CODEX_HOME": str(home), "LOCAL_KEY": KEY}


def codex_model() -> dict[str, Any]:
    """A catalogue's entry, which enables the custom tool `apply_patch`."""
    levels = [{"effort": each, "description": each} for each in ("low", "medium", "high")]
    return {
        "slug": MODEL,
        "display_name": MODEL,
        "description": MODEL,
        "default_reasoning_level": "medium",
        "supported_reasoning_levels": levels,
        "shell_type": "shell_command",
        "visibility": "list",
        "supported_in_api": True,
        "priority": 1,
        "base_instructions": "You are a coding agent.",
        "supports_reasoning_summaries": True,
        "support_verbosity": True,
        "default_verbosity": "low",
        "apply_patch_tool_type": "freeform",
        "truncation_policy": {"mode": "tokens", "limit": 10_000},
        "supports_parallel_tool_calls": True,
        "context_window": CONTEXT_TOKENS,
        "experimental_supported_tools": [],
    }


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
        ),
        run_command=run_command,
        read=lambda project, name: run_command(f"cat {name}"),
        edit=edit,
        variant="catalogue" if catalog else "",
    )  # fmt: skip


APIS: tuple[Api, ...] = ("chat", "responses", "messages")
AGENTS = [
    codex(catalog=False),
    codex(catalog=True),
    *map(pi, APIS),
    *map(qwen, APIS),
    *map(opencode, APIS),
]
BY_ID = {"-".join(filter(None, (each.name, each.api, each.variant))): each for each in AGENTS}
