"""The table of coding agents. The tests run the agents with these configurations."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from openai_frontend.cli.connect.configuration import (
    PROVIDER,
    AgentApi,
    AgentModel,
    AgentSpec,
    Files,
    GatewayAccess,
    json_file,
    known,
)

_EFFORTS = ("low", "medium", "high")
_CODEX_CONFIG = """\
model = {model}
model_provider = "{provider}"
model_catalog_json = "catalog.json"
web_search = "disabled"

[model_providers.{provider}]
name = "{provider}"
base_url = {url}
env_key = "{key_variable}"
wire_api = "responses"
"""
# Codex sends a catalogue's instructions in place of its own
_CODEX_INSTRUCTIONS = (
    "You are a coding agent in the user's terminal. Work until the task is done: read the files"
    " that matter, edit files with apply_patch, run commands and tests with the shell, and check"
    " the result. Follow AGENTS.md files. Keep changes small and in the style of the code. Never"
    " undo changes that you did not make. At the end, say briefly what you changed."
)
_CODEX_OUTPUT_TOKENS = 10_000  # of one tool's output, beyond which Codex shortens it
_PI_APIS: Mapping[AgentApi, str] = {
    "chat": "openai-completions",
    "responses": "openai-responses",
    "messages": "anthropic-messages",
}
_OPENCODE_APIS: Mapping[AgentApi, str] = {
    "chat": "@ai-sdk/openai-compatible",
    "responses": "@ai-sdk/openai",
    "messages": "@ai-sdk/anthropic",
}
_QWEN_WIRE_APIS: Mapping[AgentApi, str] = {"chat": "chat-completions", "responses": "responses"}
_VSCODE_APIS: Mapping[AgentApi, tuple[str, str]] = {
    "chat": ("chat-completions", "chat/completions"),
    "responses": ("responses", "responses"),
    "messages": ("messages", "messages"),
}


def _codex(api: AgentApi, model: AgentModel, access: GatewayAccess) -> Files:
    config = _CODEX_CONFIG.format(
        model=json.dumps(model.name, ensure_ascii=False),  # a TOML string too
        provider=PROVIDER,
        url=json.dumps(access.base_url),
        key_variable=access.key_variable,
    )
    return {
        "config.toml": config,
        "catalog.json": json_file({"models": [_codex_model(model)]}),
    }


def _codex_model(model: AgentModel) -> dict[str, Any]:
    """The catalogue's entry. `freeform` is the custom tool apply_patch with its grammar."""
    efforts = _EFFORTS if model.reasoning else ()
    return known(
        slug=model.name,
        display_name=model.name,
        description=model.name,
        context_window=model.context_tokens,
        default_reasoning_level="medium" if model.reasoning else None,
        supported_reasoning_levels=[{"effort": each, "description": each} for each in efforts],
        supports_reasoning_summaries=model.reasoning,
        support_verbosity=True,
        default_verbosity="low",
        apply_patch_tool_type="freeform",
        supports_parallel_tool_calls=True,
        truncation_policy={"mode": "tokens", "limit": _CODEX_OUTPUT_TOKENS},
        shell_type="shell_command",
        visibility="list",
        supported_in_api=True,
        priority=1,
        experimental_supported_tools=[],
        input_modalities=_inputs(model),
        base_instructions=_CODEX_INSTRUCTIONS,
    )


def _claude(api: AgentApi, model: AgentModel, access: GatewayAccess) -> Files:
    """Every alias is the one model, so that background tasks use it too."""
    values = known(
        ANTHROPIC_BASE_URL=access.url,
        ANTHROPIC_MODEL=model.name,
        ANTHROPIC_DEFAULT_OPUS_MODEL=model.name,
        ANTHROPIC_DEFAULT_SONNET_MODEL=model.name,
        ANTHROPIC_DEFAULT_HAIKU_MODEL=model.name,
        CLAUDE_CODE_SUBAGENT_MODEL=model.name,
        CLAUDE_CODE_MAX_CONTEXT_TOKENS=model.context_tokens,
        CLAUDE_CODE_MAX_OUTPUT_TOKENS=model.output_tokens,
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1,
    )
    lines = [f"export {name}={shlex.quote(str(value))}" for name, value in values.items()]
    lines.insert(1, f'export ANTHROPIC_AUTH_TOKEN="${{{access.key_variable}:-none}}"')
    return {"claude.env": "\n".join([*lines, "unset ANTHROPIC_API_KEY"]) + "\n"}


def _opencode(api: AgentApi, model: AgentModel, access: GatewayAccess) -> Files:
    limit = known(context=model.context_tokens, output=model.output_tokens)
    entry = {
        "name": model.name,
        "tool_call": model.tools,
        "reasoning": model.reasoning,
        "attachment": model.images,
        "modalities": {"input": _inputs(model), "output": ["text"]},
        **({"limit": limit} if len(limit) == 2 else {}),
    }
    provider = {
        "npm": _OPENCODE_APIS[api],
        "name": PROVIDER,
        "options": {"baseURL": access.base_url, "apiKey": f"{{env:{access.key_variable}}}"},
        "models": {model.name: entry},
    }
    config = {
        "$schema": "https://opencode.ai/config.json",
        "model": f"{PROVIDER}/{model.name}",
        "provider": {PROVIDER: provider},
        "autoupdate": False,
        "share": "disabled",
    }
    return {"opencode.json": json_file(config)}


def _pi(api: AgentApi, model: AgentModel, access: GatewayAccess) -> Files:
    entry = known(
        id=model.name,
        reasoning=model.reasoning,
        input=_inputs(model),
        contextWindow=model.context_tokens,
        maxTokens=model.output_tokens,
    )
    provider = {
        "baseUrl": _sdk_url(api, access),
        "api": _PI_APIS[api],
        "apiKey": f"${access.key_variable}",
        "models": [entry],
    }
    return {"models.json": json_file({"providers": {PROVIDER: provider}})}


def _qwen(api: AgentApi, model: AgentModel, access: GatewayAccess) -> Files:
    limited = model.output_tokens is not None and api != "messages"  # thinking has its own limit
    generation = known(
        contextWindowSize=model.context_tokens,
        samplingParams={"max_tokens": model.output_tokens} if limited else None,
        modalities={"image": True} if model.images else None,
    )
    entry = known(
        id=model.name,
        name=model.name,
        baseUrl=_sdk_url(api, access),
        envKey=access.key_variable,
        wireApi=_QWEN_WIRE_APIS.get(api),
        generationConfig=generation,
    )
    protocol = "anthropic" if api == "messages" else "openai"
    settings = {
        "modelProviders": {protocol: [entry]},
        "security": {"auth": {"selectedType": protocol}},
        "model": {"name": model.name},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False},
    }
    return {"settings.json": json_file(settings)}


def _vscode(api: AgentApi, model: AgentModel, access: GatewayAccess) -> Files:
    kind, path = _VSCODE_APIS[api]
    context, output = model.context_tokens, model.output_tokens
    entry = known(
        id=model.name,
        name=model.name,
        url=f"{access.base_url}/{path}",
        toolCalling=model.tools,
        vision=model.images,
        thinking=model.reasoning,
        maxInputTokens=None if context is None or output is None else context - output,
        maxOutputTokens=output,
        supportsReasoningEffort=list(_EFFORTS) if model.reasoning else None,
    )
    provider = {
        "name": PROVIDER,
        "vendor": "customendpoint",
        "apiKey": f"${{input:{access.key_variable}}}",
        "apiType": kind,
        "models": [entry],
    }
    return {"User/chatLanguageModels.json": json_file([provider])}


def _inputs(model: AgentModel) -> list[str]:
    return ["text", "image"] if model.images else ["text"]


def _sdk_url(api: AgentApi, access: GatewayAccess) -> str:
    """Anthropic's SDK adds /v1 itself."""
    return access.url if api == "messages" else access.base_url


AGENTS: Mapping[str, AgentSpec] = {
    "codex": AgentSpec(
        title="Codex",
        api="responses",
        files=_codex,
        variables={"CODEX_HOME": "{folder}"},
        start="codex",
    ),
    "claude": AgentSpec(
        title="Claude Code",
        api="messages",
        files=_claude,
        start=". {folder}/claude.env && CLAUDE_CONFIG_DIR={folder} claude",
        requires_key=False,  # the file has a default
    ),
    "opencode": AgentSpec(
        title="opencode",
        api="chat",
        files=_opencode,
        variables={
            "OPENCODE_CONFIG": "{folder}/opencode.json",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
        },
        start="opencode",
    ),
    "pi": AgentSpec(
        title="pi",
        api="chat",
        files=_pi,
        variables={"PI_CODING_AGENT_DIR": "{folder}"},
        start=f"pi --provider {PROVIDER} --model {{model}}",
    ),
    "qwen": AgentSpec(
        title="Qwen Code",
        api="chat",
        files=_qwen,
        variables={"QWEN_HOME": "{folder}"},
        start="qwen",
    ),
    "vscode": AgentSpec(
        title="VS Code",
        api="chat",
        files=_vscode,
        start="code --user-data-dir {folder}",
        requires_key=False,  # it asks
    ),
}
