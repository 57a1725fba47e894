"""Runs `connect`: reads the server's models, and prints or writes an agent's configuration."""

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from openai_frontend.cli.connect.agents import AGENTS
from openai_frontend.cli.connect.configuration import (
    AgentModel,
    AgentSpec,
    Files,
    GatewayAccess,
)
from openai_frontend.errors import did_you_mean

_URL = "http://127.0.0.1:9000/v1"
_KEY_VARIABLE = "OPENAI_API_KEY"  # OpenAI's SDK reads it too
PLACEHOLDER = "FOLDER"  # in what is printed
_USEFUL_CONTEXT = 32_000  # tokens: agents' instructions and tools alone need up to 25,000
_OUTPUT_SHARE, _MAX_OUTPUT = 4, 32_000  # of the context, if the server states no limit

Entry = Mapping[str, Any]  # of /v1/models


class ConnectError(Exception):
    """The message is one line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    titles = ", ".join(each.title for each in AGENTS.values())
    parser.add_argument("agent", choices=list(AGENTS), help=f"the agent: {titles}")
    parser.add_argument(
        "--url", default=_URL, metavar="URL", help=f"the server's base URL. Default: {_URL}."
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="a name that /v1/models lists. Default: the first model with chat and tools.",
    )
    parser.add_argument(
        "--key-variable",
        type=_variable,
        default=_KEY_VARIABLE,
        metavar="NAME",
        help="environment variable with the API key, here and for the agent; the key itself is "
        f"never written. Default: {_KEY_VARIABLE}.",
    )
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FOLDER",
        help="write the files into this folder. Default: print them.",
    )


def _variable(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise argparse.ArgumentTypeError(f"'{text}' is not the name of an environment variable")
    return text


def run(arguments: Mapping[str, Any]) -> str | None:
    """Returns the error on one line, or None."""
    spec: AgentSpec = AGENTS[arguments["agent"]]
    folder: Path | None = arguments["write"]
    variable: str = arguments["key_variable"]
    try:
        access = GatewayAccess(url=_root(arguments["url"]), key_variable=variable)
        entries = _entries(access)
        model = described(_select(entries, arguments["model"]))
        notes = list(_notes(arguments["agent"], model))
        files = spec.files(spec.api, model, access)
        if folder is not None:
            _write(files, folder)
    except ConnectError as error:
        return f"connect: {error}"
    except OSError as error:
        return f"connect: {error.filename}: {error.strerror}"
    for note in notes:
        sys.stderr.write(f"openai-frontend: note: {note}\n")
    keyless = not os.environ.get(variable)
    place = PLACEHOLDER if folder is None else shlex.quote(str(folder.resolve()))
    shown = {} if folder is not None else files
    sys.stdout.write(report(spec, shown, place, model, keyless=variable if keyless else None))
    return None


def report(
    spec: AgentSpec, files: Files, folder: str, model: AgentModel, *, keyless: str | None
) -> str:
    """The files, and the line that starts the agent. `keyless`: the variable, if it is not set."""
    texts = [f"# {folder}/{name}\n{content}\n" for name, content in files.items()]
    return "".join(
        [*texts, f"# {spec.title}\n{start_line(spec, folder, model, keyless=keyless)}\n"]
    )


def start_line(spec: AgentSpec, folder: str, model: AgentModel, *, keyless: str | None) -> str:
    """Agents require some key, also for a server without keys."""
    environment = spec.environment(folder)
    if keyless is not None and spec.requires_key:
        environment[keyless] = "none"
    line = spec.start.format(model=shlex.quote(model.name), folder=folder)
    return " ".join([*(f"{name}={value}" for name, value in environment.items()), line])


def _root(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")


def _entries(access: GatewayAccess) -> list[Entry]:
    """The models that the key may use. Raises ConnectError."""
    from openai_frontend.cli.top.scrape import Connection, Unreachable, parse_address

    key = os.environ.get(access.key_variable, "").strip() or None
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ConnectError(f"the key in {access.key_variable} contains invalid characters")
    try:
        address = parse_address(access.url, key=key)
        with Connection(address) as connection:
            status, body = connection.get("/v1/models")
    except ValueError as error:
        raise ConnectError(f"--url: {error}") from None
    except Unreachable as error:
        raise ConnectError(f"{access.url}: {error}; is the server running?") from None
    if status != 200:
        raise ConnectError(_refusal(status, access, key))
    return _parsed(body, access)


def _refusal(status: int, access: GatewayAccess, key: str | None) -> str:
    variable = access.key_variable
    if status == 401 and key is None:
        return (
            f"{access.url} requires an API key: set {variable}, or name another variable with"
            " --key-variable"
        )
    if status == 401:
        return f"{access.url} refused the key in {variable}"
    if status == 403:
        return f"the key in {variable} lacks the scope 'models'"
    return f"{access.base_url}/models returned status {status}"


def _parsed(body: bytes, access: GatewayAccess) -> list[Entry]:
    try:
        return [entry for entry in json.loads(body)["data"] if isinstance(entry["id"], str)]
    except (ValueError, KeyError, TypeError):
        raise ConnectError(f"{access.base_url}/models returned no list of models") from None


def _select(entries: Sequence[Entry], name: str | None) -> Entry:
    """The named model, or the first one that suits agents best. Raises ConnectError."""
    chats = [entry for entry in entries if _able(entry, "chat")]
    if not chats:
        raise ConnectError("the server has no chat model that this key may use")
    if name is None:
        return next((entry for entry in chats if _able(entry, "tools")), chats[0])
    for entry in entries:
        if entry["id"] == name:
            if not _able(entry, "chat"):
                raise ConnectError(f"the model '{name}' is not a chat model")
            return entry
    names = [entry["id"] for entry in chats]
    guess = did_you_mean(name, names) or f"; the server has {', '.join(names)}"
    raise ConnectError(f"no model '{name}'{guess}")


def _able(entry: Entry, capability: str) -> bool:
    """True if the server does not say."""
    return bool((entry.get("capabilities") or {}).get(capability, True))


def described(entry: Entry) -> AgentModel:
    """Facts of an entry of /v1/models."""
    context = entry.get("max_model_len")
    output = entry.get("max_output_tokens")
    if output is None and context is not None:
        output = min(context // _OUTPUT_SHARE, _MAX_OUTPUT)
    return AgentModel(
        name=entry["id"],
        context_tokens=context,
        output_tokens=output,
        tools=_able(entry, "tools"),
        reasoning=_able(entry, "reasoning"),
        images=entry.get("images") is not None,
    )


def _notes(agent: str, model: AgentModel) -> Iterator[str]:
    """Facts that will hinder the agent. Raises ConnectError if it cannot start at all."""
    if agent == "claude" and "/" in model.name:
        raise ConnectError(
            f"Claude Code refuses names with '/': add an alias to the model '{model.name}'"
            " (docs/models.md)"
        )
    if agent == "claude" and not model.name.startswith("claude-"):
        yield (
            "Claude Code may refuse names outside its own catalogue; an alias such as "
            "claude-sonnet-4-5 helps (docs/models.md)"
        )
    if not model.tools:
        yield f"the model '{model.name}' supports no tools, which agents need"
    if model.context_tokens is not None and model.context_tokens < _USEFUL_CONTEXT:
        yield (
            f"the model '{model.name}' has a context of {model.context_tokens} tokens; agents need"
            f" about {_USEFUL_CONTEXT}"
        )


def _write(files: Files, folder: Path) -> None:
    """Files with other contents stay: the folder may be an agent's own. Raises ConnectError."""
    for name, content in files.items():
        path = folder / name
        if path.exists() and path.read_text(encoding="utf-8", errors="replace") != content:
            raise ConnectError(f"{path} has other contents; remove it, or use another folder")
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
