"""Types of settings, with the parsers of their text in flags and environment variables.

A list is a repeated flag, comma-separated text in the environment, and a list or mapping in YAML.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, get_args, get_origin

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    InstanceOf,
    JsonValue,
    ValidationInfo,
)

from openai_frontend.config import bucket_repositories, restricted_groups, triton_options
from openai_frontend.config.bucket_repositories import BucketRepository
from openai_frontend.config.grpc_options import ALL_OPTIONS
from openai_frontend.config.model_options import ModelOptions, Name
from openai_frontend.config.restricted_groups import RESTRICTING_OPTIONS

SCOPED_FORM = "NAME:KEY=VALUE"
TRITON_FORM = "[NAME:]KEY=VALUE"
OPTION_FORM = "NAME=VALUE"
TEMPLATE_FORM = "[MODEL=]NAME_OR_PATH"
PARSER_FORM = "[MODEL=]PARSER"
ARGUMENT_FORM = "KEY=VALUE"

EVERY_MODEL = "*"

# `json_schema_extra` of a setting whose value must not appear in messages
SECRET: dict[str, JsonValue] = {"secret": True}


def _items(value: Any) -> list[Any]:
    """Items of comma-separated text, of a repeated flag, or of a YAML list."""
    if isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    if not isinstance(value, list):
        raise ValueError("must be a list")
    items = [item.strip() if isinstance(item, str) else item for item in value]
    if "" in items:
        raise ValueError("must not contain an empty value")
    return items


def _split(item: Any, separator: str, form: str) -> tuple[str, str]:
    left, found, right = str(item).partition(separator)
    if not (left and found and right):
        raise ValueError(f"'{item}' must have the form {form}")
    return left, right


def _list(value: Any) -> Any:
    return _items(value) if isinstance(value, str | list) else value


def _by_scope(value: Any) -> Any:
    """`scope:key=value` items, or a YAML mapping of mappings, with scalars converted to text."""
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


GLOBAL = ""  # Triton's name of the settings that apply to all backends, or to all metrics


def _triton_settings(value: Any) -> Any:
    """Parse settings with a scope, or `key=value` without a scope, which is global.
    `scope,key=value` is tritonserver's form.
    """
    if isinstance(value, Mapping):
        return _by_scope(_with_global(value))
    scopes: dict[str, dict[str, str]] = {}
    for item in _rejoined(_items(value)) if isinstance(value, str) else _items(value):
        name, text = _split(item, "=", TRITON_FORM)
        *scopes_of_key, key = re.split("[:,]", name, maxsplit=1)
        if not key:
            raise ValueError(f"'{item}' must have the form {TRITON_FORM}")
        scopes.setdefault("".join(scopes_of_key), {})[key] = text
    return scopes


def _named_settings(value: Any) -> Any:
    """Parse settings with a scope; Triton has no global ones here."""
    scopes = _triton_settings(value)
    if GLOBAL in scopes:
        first = next(iter(scopes[GLOBAL]), "")
        raise ValueError(f"'{first}' must have the form {SCOPED_FORM}")
    return scopes


def _with_global(settings: Mapping[Any, Any]) -> dict[Any, Any]:
    """Put the scalars of a YAML mapping with its global settings."""
    scalars = {
        key: value for key, value in settings.items() if isinstance(value, str | int | float)
    }
    scopes = {scope: value for scope, value in settings.items() if scope not in scalars}
    return scopes | ({GLOBAL: {**scopes.get(GLOBAL, {}), **scalars}} if scalars else {})


def _rejoined(items: Iterable[str]) -> list[str]:
    """Undo the split of a value at its commas, as of `summary_quantiles=0.5:0.05,0.9:0.01`."""
    whole: list[str] = []
    for item in items:
        if whole and _QUANTILE.fullmatch(item):
            whole[-1] += f",{item}"
        else:
            whole.append(item)
    return whole


_QUANTILE = re.compile(r"[0-9.]+(:[0-9.]+)?")  # also the bound of a histogram's bucket


def _scalar_text(scalar: Any) -> Any:
    """YAML booleans and numbers as Triton writes them."""
    if isinstance(scalar, bool):
        return str(scalar).lower()
    return str(scalar) if isinstance(scalar, int | float) else scalar


def _options_of_triton(value: Any) -> dict[str, list[str]]:
    """`name=value` items, or a YAML mapping, in which an option that repeats may have a list."""
    if isinstance(value, Mapping):
        texts = {str(name): _option_texts(str(name), each) for name, each in value.items()}
    else:
        texts = _assigned_texts(value)
    for name, each in texts.items():
        for text in each:
            triton_options.arguments(name, text, ALL_OPTIONS)
    for name in RESTRICTING_OPTIONS:
        restricted_groups.restricted(texts, name)  # raises ValueError
    return {name: each if _repeats(name) else each[-1:] for name, each in texts.items()}


def _assigned_texts(value: Any) -> dict[str, list[str]]:
    items = _items(value)
    if isinstance(value, str):
        items = restricted_groups.joined(items)
    has_secret = any(restricted_groups.is_secret(str(item)) for item in items)
    texts: dict[str, list[str]] = {}
    for item in items:
        if has_secret and "=" not in str(item):  # may be the rest of a value with a comma
            raise ValueError(f"an item has not the form {OPTION_FORM}")
        name, text = _split(item, "=", OPTION_FORM)
        texts.setdefault(name, []).append(text)
    return texts


def _option_texts(name: str, value: Any) -> list[str]:
    if isinstance(value, list) and _repeats(name):
        return [text for each in value for text in _option_texts(name, each)]
    text = _scalar_text(value)
    if not isinstance(text, str):
        raise ValueError(f"{name}: must be one number, text, true or false")
    return [text]


def _repeats(name: str) -> bool:
    option = ALL_OPTIONS.get(name)
    return option is not None and option.repeats


def _arguments(value: Any) -> Any:
    """`key=value` items, or a YAML mapping. A value that is not valid JSON is text."""
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
    """`model=value` items, or a YAML mapping. A value without a model is for every model."""

    def parse(value: Any) -> Any:
        if not isinstance(value, str | list):
            return value
        return dict(_of_model(str(item), form) for item in _items(value))

    return BeforeValidator(parse)


def _of_model(item: str, form: str) -> tuple[str, str]:
    model, found, _ = item.partition("=")
    if not found or "/" in model:  # model names have no slash: a path that contains =
        return EVERY_MODEL, item
    return _split(item, "=", form)


ParserName = NewType("ParserName", str)


def _known_parser(name: str, info: ValidationInfo) -> str:
    """Check the name of a built-in parser; one with a colon is resolved when the model loads.

    The validation context has the built-in names.
    """
    known = (info.context or {}).get("parsers")
    if known is None or ":" in name or name in known:
        return name
    close = get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        raise ValueError(f"unknown parser '{name}'; did you mean {' or '.join(map(repr, close))}?")
    raise ValueError(
        f"unknown parser '{name}'; use a family of docs/tools.md, none, vllm:NAME "
        "or package.module:Class"
    )


def _parsed(parse: Callable[[Any], Any]) -> BeforeValidator:
    return BeforeValidator(parse)


def _origins(value: list[str]) -> list[str]:
    """Accept only the form that browsers send: any other would never match."""
    for origin in value:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ValueError(f"'{origin}' must have the form https://HOST[:PORT]")
    return value


_ORIGIN = re.compile(r"https?://[^/?#@\sA-Z]+")


def _hosts(value: list[str]) -> list[str]:
    """Host names without a port, which a proxy may change; IP addresses as in a Host header."""
    for host in value:
        if not _HOST.fullmatch(host):
            raise ValueError(f"'{host}' must be a host name or have the form *.DOMAIN")
    return value


_HOST = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\]")


def _domains(value: list[str]) -> list[str]:
    """Complete names of hosts: addresses and names of one label are in private networks."""
    for domain in value:
        if not _DOMAIN.fullmatch(domain):
            raise ValueError(f"'{domain}' must have the form HOST.DOMAIN or *.HOST.DOMAIN")
    return value


_DOMAIN = re.compile(r"(\*\.)?([a-z0-9_-]{1,63}\.)+[a-z][a-z0-9-]{0,62}")


@dataclass(frozen=True)
class ApiKey:
    """An API key; only its digest is kept."""

    sha256: str  # 64 hexadecimal digits


def _api_keys(value: Any) -> list[ApiKey]:
    """Messages must not contain a key."""
    return [item if isinstance(item, ApiKey) else _api_key(item) for item in _items(value)]


def _api_key(key: Any) -> ApiKey:
    if not isinstance(key, str):
        raise ValueError("an API key must be text; quote it")
    if not _API_KEY.fullmatch(key):
        raise ValueError("an API key must contain only visible ASCII characters")
    return ApiKey(hashlib.sha256(key.encode()).hexdigest())


_API_KEY = re.compile(r"[!-~]+")  # allowed in an Authorization header

UNIX = "unix"  # peers of a Unix socket, which have no address


def _networks(value: list[str]) -> list[str]:
    for network in value:
        if network != UNIX:
            ip_network(network)  # raises ValueError with the reason
    return value


# First segments of our own paths: with such a root path, the prefix to strip would be ambiguous
OWN_SEGMENTS = frozenset({
    "v1", "v2", "docs", "detokenize", "embed_sparse", "favicon.ico", "health", "healthz", "metrics",
    "openapi.json", "classify", "invocations", "is_sleeping", "ping", "playground", "pooling",
    "rerank", "score", "sleep", "tokenize", "version", "wake_up",
})  # fmt: skip


def _root_path(value: str) -> str:
    """Strip trailing slashes."""
    path = value.rstrip("/")
    if path and not _ROOT_PATH.fullmatch(path):
        raise ValueError(f"'{value}' must have the form /PATH")
    if path and path.split("/")[1] in OWN_SEGMENTS:
        raise ValueError(f"'{value}' must not start like a path of the API itself")
    return path


_ROOT_PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+")

RootPath = Annotated[str, AfterValidator(_root_path)]


def _replica_name(value: str) -> str:
    if not _REPLICA_NAME.fullmatch(value):
        raise ValueError(f"'{value}' must have 1 to 128 letters, digits or characters of _.:/@-")
    return value


_REPLICA_NAME = re.compile(r"[A-Za-z0-9_.:/@-]{1,128}")

ReplicaName = Annotated[str, AfterValidator(_replica_name)]


def _peers(value: list[str]) -> list[str]:
    """Base URLs, without a path."""
    for peer in value:
        if not _PEER.fullmatch(peer):
            raise ValueError(f"'{peer}' must have the form http://HOST:PORT or https://HOST:PORT")
    if len(set(value)) < len(value):
        raise ValueError("the same URL is listed twice")
    return value


_PEER = re.compile(r"https?://([a-z0-9_]([a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\]):[0-9]{1,5}")


def _bucket_or_path(value: Any) -> Any:
    """A URL of object storage in tritonserver's spelling, or a path."""
    if isinstance(value, str) and bucket_repositories.is_bucket_url(value):
        return bucket_repositories.parse(value)
    return value


_BucketOrPath: Any = InstanceOf[BucketRepository] | Path
if TYPE_CHECKING:
    Repository = BucketRepository | Path
else:
    Repository = Annotated[_BucketOrPath, _parsed(_bucket_or_path)]

Names = Annotated[list[str], _parsed(_list)]
ModelNames = Annotated[list[Name], _parsed(_list)]
Origins = Annotated[list[str], _parsed(_list), AfterValidator(_origins)]
Hosts = Annotated[list[str], _parsed(_list), AfterValidator(_hosts)]
Domains = Annotated[list[str], _parsed(_list), AfterValidator(_domains)]
ApiKeys = Annotated[list[ApiKey], _parsed(_api_keys)]
Networks = Annotated[list[str], _parsed(_list), AfterValidator(_networks)]
Peers = Annotated[list[str], _parsed(_list), AfterValidator(_peers)]
Repositories = Annotated[list[Repository], _parsed(_list), Field(min_length=1)]
ScopedSettings = Annotated[dict[str, dict[str, str]], _parsed(_named_settings)]
TritonValue = NewType("TritonValue", str)
TritonSettings = Annotated[dict[str, dict[str, TritonValue]], _parsed(_triton_settings)]
OptionsByModel = Annotated[dict[str, ModelOptions], _parsed(_by_scope)]
Arguments = Annotated[dict[str, JsonValue], _parsed(_arguments)]
ByModel = Annotated[dict[str, str], _by_model(TEMPLATE_FORM)]
ParserByModel = Annotated[
    dict[str, Annotated[ParserName, AfterValidator(_known_parser)]], _by_model(PARSER_FORM)
]
TritonOptions = Annotated[dict[str, list[str]], _parsed(_options_of_triton)]

_FORMS: Mapping[Any, str] = {
    str: "TEXT",
    int: "NUMBER",
    float: "NUMBER",
    bool: "",
    Path: "PATH",
    _BucketOrPath: "PATH_OR_URL",
    ApiKey: "KEY",
}


def form(type: Any) -> str:
    """The format of one value, for `--help`; empty for a switch."""
    if get_origin(type) is dict:
        return _MAPPING_FORMS.get(_plain(get_args(type)[1]), SCOPED_FORM)
    if get_origin(type) is list:
        return form(_plain(get_args(type)[0]))
    return "|".join(get_args(type)) if get_origin(type) is Literal else _FORMS[_plain(type)]


def _plain(value: Any) -> Any:
    return get_args(value)[0] if get_origin(value) is Annotated else value


_MAPPING_FORMS: Mapping[Any, str] = {
    str: TEMPLATE_FORM,
    ParserName: PARSER_FORM,
    JsonValue: ARGUMENT_FORM,
    dict[str, TritonValue]: TRITON_FORM,
    list[str]: OPTION_FORM,
}
