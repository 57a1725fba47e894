"""Settings that are more than one word: how a flag or an environment variable spells them.

A flag is repeated, an environment variable has commas, YAML has lists and mappings.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, ValidationInfo

from openai_frontend.config.model_options import ModelOptions, Name

SCOPED_FORM = "NAME:KEY=VALUE"
DEVICE_FORM = "DEVICE:NUMBER"
RESOURCE_FORM = "NAME:COUNT[:DEVICE]"
TEMPLATE_FORM = "[MODEL=]NAME_OR_PATH"
PARSER_FORM = "[MODEL=]PARSER"
ARGUMENT_FORM = "KEY=VALUE"

EVERY_MODEL = "*"

# `json_schema_extra` of a setting whose value must not appear in messages
SECRET: dict[str, JsonValue] = {"secret": True}


def _items(value: Any) -> list[Any]:
    """The items of an environment variable's text, of a repeated flag, or of a file's list."""
    if isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    if not isinstance(value, list):
        raise ValueError("expected a list")
    items = [item.strip() if isinstance(item, str) else item for item in value]
    if "" in items:
        raise ValueError("a value is empty")
    return items


def _split(item: Any, separator: str, form: str) -> tuple[str, str]:
    left, found, right = str(item).partition(separator)
    if not (left and found and right):
        raise ValueError(f"'{item}' is not of the form {form}")
    return left, right


def _list(value: Any) -> Any:
    return _items(value) if isinstance(value, str | list) else value


def _by_scope(value: Any) -> Any:
    """`scope:key=value` items, or YAML's mapping of mappings, whose scalars become text."""
    if isinstance(value, Mapping):
        return {
            scope: {key: _scalar_text(scalar) for key, scalar in settings.items()}
            if isinstance(settings, Mapping)
            else settings
            for scope, settings in value.items()
        }
    scopes: dict[str, dict[str, str]] = {}
    for item in _items(value):
        scope, setting = _split(item, ":", SCOPED_FORM)
        key, text = _split(setting, "=", SCOPED_FORM)
        scopes.setdefault(scope, {})[key] = text
    return scopes


def _scalar_text(scalar: Any) -> Any:
    """YAML's true and numbers as Triton spells them."""
    if isinstance(scalar, bool):
        return str(scalar).lower()
    return str(scalar) if isinstance(scalar, int | float) else scalar


def _by_device(value: Any) -> Any:
    """`device:number` items, or YAML's mapping."""
    if isinstance(value, Mapping):
        return value
    return dict(_split(item, ":", DEVICE_FORM) for item in _items(value))


def _arguments(value: Any) -> Any:
    """`key=value` items, or YAML's mapping; a value is JSON if it can be, else text."""
    if isinstance(value, Mapping):
        return value
    items = (_split(item, "=", ARGUMENT_FORM) for item in _items(value))
    return {key.replace("-", "_"): _json_or_text(text) for key, text in items}


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=lambda constant: constant)
    except ValueError:
        return text


def _by_model(form: str) -> BeforeValidator:
    """`model=value` items, or YAML's mapping; a value alone is every model's."""

    def parse(value: Any) -> Any:
        if not isinstance(value, str | list):
            return value
        return dict(_of_model(str(item), form) for item in _items(value))

    return BeforeValidator(parse)


def _of_model(item: str, form: str) -> tuple[str, str]:
    model, found, _ = item.partition("=")
    if not found or "/" in model:  # no model's name has one: it is a path with a = in it
        return EVERY_MODEL, item
    return _split(item, "=", form)


ParserName = NewType("ParserName", str)


def _known_parser(name: str, info: ValidationInfo) -> str:
    """What has a colon is from elsewhere, and looked for when the model is loaded. The other names
    come with the validation's context, for this module knows no families.
    """
    known = (info.context or {}).get("parsers")
    if known is None or ":" in name or name in known:
        return name
    close = get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        raise ValueError(
            f"there is no parser '{name}'; did you mean {' or '.join(map(repr, close))}?"
        )
    raise ValueError(
        f"there is no parser '{name}': it is a family of docs/tools.md, none, vllm:NAME "
        "or package.module:Class"
    )


@dataclass(frozen=True)
class RateLimiterResource:
    """A resource that model instances share; device -1 means every device."""

    name: str
    count: int
    device: int = -1


def _resources(value: Any) -> Any:
    """`name:count` or `name:count:device` items; YAML has a list of the same."""
    return [_resource(item) if isinstance(item, str) else item for item in _items(value)]


def _resource(item: str) -> dict[str, str]:
    name, rest = _split(item, ":", RESOURCE_FORM)
    count, _, device = rest.partition(":")
    return {"name": name, "count": count, "device": device or "-1"}


def _parsed(parse: Callable[[Any], Any]) -> BeforeValidator:
    return BeforeValidator(parse)


def _origins(value: list[str]) -> list[str]:
    """As browsers write them: one that is written otherwise would never be met."""
    for origin in value:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ValueError(f"'{origin}' is not of the form https://HOST[:PORT]")
    return value


_ORIGIN = re.compile(r"https?://[^/?#@\sA-Z]+")


def _hosts(value: list[str]) -> list[str]:
    """Names without a port, for a proxy may have another; addresses as they stand in a header."""
    for host in value:
        if not _HOST.fullmatch(host):
            raise ValueError(f"'{host}' is no name of a host, nor of the form *.DOMAIN")
    return value


_HOST = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\]")


@dataclass(frozen=True)
class ApiKey:
    """What is kept of an API key."""

    sha256: str  # 64 hexadecimal digits


def _api_keys(value: Any) -> list[ApiKey]:
    """No message shows a key."""
    return [item if isinstance(item, ApiKey) else _api_key(item) for item in _items(value)]


def _api_key(key: Any) -> ApiKey:
    if not isinstance(key, str):
        raise ValueError("an API key is text; quote it")
    if not _API_KEY.fullmatch(key):
        raise ValueError("an API key has characters other than visible ASCII")
    return ApiKey(hashlib.sha256(key.encode()).hexdigest())


_API_KEY = re.compile(r"[!-~]+")  # what an Authorization header can carry

UNIX = "unix"  # the peer of a Unix socket, which has no address


def _networks(value: list[str]) -> list[str]:
    for network in value:
        if network != UNIX:
            ip_network(network)  # its own words say what is wrong
    return value


# What our own paths start with: below such a root path it would not be clear what to drop
OWN_SEGMENTS = frozenset({
    "v1", "v2", "docs", "detokenize", "favicon.ico", "health", "healthz", "metrics", "openapi.json",
    "ping", "rerank", "score", "tokenize", "version",
})  # fmt: skip


def _root_path(value: str) -> str:
    """Without a slash at the end; a lone slash is none."""
    path = value.rstrip("/")
    if path and not _ROOT_PATH.fullmatch(path):
        raise ValueError(f"'{value}' is not of the form /PATH")
    if path and path.split("/")[1] in OWN_SEGMENTS:
        raise ValueError(f"'{value}' starts like a path of the API itself")
    return path


_ROOT_PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+")

RootPath = Annotated[str, AfterValidator(_root_path)]
Names = Annotated[list[str], _parsed(_list)]
ModelNames = Annotated[list[Name], _parsed(_list)]
Origins = Annotated[list[str], _parsed(_list), AfterValidator(_origins)]
Hosts = Annotated[list[str], _parsed(_list), AfterValidator(_hosts)]
ApiKeys = Annotated[list[ApiKey], _parsed(_api_keys)]
Networks = Annotated[list[str], _parsed(_list), AfterValidator(_networks)]
Paths = Annotated[list[Path], _parsed(_list), Field(min_length=1)]
ScopedSettings = Annotated[dict[str, dict[str, str]], _parsed(_by_scope)]
OptionsByModel = Annotated[dict[str, ModelOptions], _parsed(_by_scope)]
Arguments = Annotated[dict[str, JsonValue], _parsed(_arguments)]
ByModel = Annotated[dict[str, str], _by_model(TEMPLATE_FORM)]
ParserByModel = Annotated[
    dict[str, Annotated[ParserName, AfterValidator(_known_parser)]], _by_model(PARSER_FORM)
]
BytesByDevice = Annotated[dict[int, Annotated[int, Field(ge=0)]], _parsed(_by_device)]
FractionByDevice = Annotated[
    dict[int, Annotated[float, Field(ge=0.0, le=1.0)]], _parsed(_by_device)
]
RateLimiterResources = Annotated[list[RateLimiterResource], _parsed(_resources)]

_FORMS: Mapping[Any, str] = {
    str: "TEXT",
    int: "NUMBER",
    float: "NUMBER",
    bool: "",
    Path: "PATH",
    ApiKey: "KEY",
    RateLimiterResource: RESOURCE_FORM,
}


def form(type: Any) -> str:
    """How one value of a setting's type is written; empty for a switch."""
    if get_origin(type) is dict:
        return _mapping_form(*get_args(type))
    if get_origin(type) is list:
        return form(_plain(get_args(type)[0]))
    return "|".join(get_args(type)) if get_origin(type) is Literal else _FORMS[type]


def _mapping_form(key: Any, value: Any) -> str:
    if key is int:
        return DEVICE_FORM
    return _MAPPING_FORMS.get(_plain(value), SCOPED_FORM)


def _plain(value: Any) -> Any:
    return get_args(value)[0] if get_origin(value) is Annotated else value


_MAPPING_FORMS: Mapping[Any, str] = {
    str: TEMPLATE_FORM,
    ParserName: PARSER_FORM,
    JsonValue: ARGUMENT_FORM,
}
