"""Types of the agents' configurations, and their JSON."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

AgentApi = Literal["chat", "responses", "messages"]
Files = Mapping[str, str]  # name below the agent's folder -> content

PROVIDER = "local"  # our name in configurations with several providers
_LINE = 92  # characters; longer JSON values have a line for each item


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentModel:
    """A model as agents' configurations describe it. None: unknown, and left out."""

    name: str
    context_tokens: int | None
    output_tokens: int | None
    tools: bool = True
    reasoning: bool = True
    images: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayAccess:
    """The server, and the environment variable that holds the key: no configuration has the key."""

    url: str  # without /v1
    key_variable: str

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """One agent: what its files contain, and how it starts with them."""

    title: str
    api: AgentApi  # preferred
    files: Callable[[AgentApi, AgentModel, GatewayAccess], Files]
    start: str  # may have {folder} and {model}
    # Environment variables with fixed values; they may have {folder}
    variables: Mapping[str, str] = field(default_factory=dict)
    requires_key: bool = True  # even if the server does not

    def environment(self, folder: str) -> dict[str, str]:
        return {name: value.format(folder=folder) for name, value in self.variables.items()}


def known(**fields: Any) -> dict[str, Any]:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def json_file(value: Any) -> str:
    return _json(value, "") + "\n"


def _json(value: Any, indent: str) -> str:
    """Short values are on one line."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= _LINE or not isinstance(value, dict | list):
        return line
    inner = indent + "  "
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {_json(each, inner)}" for key, each in value.items()]
        opening, closing = "{}"
    else:
        items = [_json(each, inner) for each in value]
        opening, closing = "[]"
    body = f",\n{inner}".join(items)
    return f"{opening}\n{inner}{body}\n{indent}{closing}"
