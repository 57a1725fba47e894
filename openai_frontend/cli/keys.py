"""`keys add|list|revoke`: API keys in a file, which stores only their digests."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from openai_frontend.auth import keys_file
from openai_frontend.auth.api_keys import SCOPES, Key, KeyScope, digest_of, new_secret
from openai_frontend.auth.keys_file import InvalidKeysFile, KeyExists, UnknownKey
from openai_frontend.auth.rate_limit import KeyLimits
from openai_frontend.cli.console import write_table

PATH_VARIABLE = "OPENAI_FRONTEND_KEYS_FILE"

_DEFAULT_SCOPES: list[KeyScope] = ["inference", "models"]
_COLUMNS = ("name", "digest", "scopes", "models", "limits", "expires")


class _KeysError(Exception):
    """The message is one line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="keys_command", required=True, metavar="COMMAND")
    adding = commands.add_parser("add", help="create an API key and print it once")
    _add_key_arguments(adding)
    listing = commands.add_parser("list", help="list the keys; their secrets are not stored")
    revoking = commands.add_parser("revoke", help="remove a key")
    revoking.add_argument("name", metavar="NAME", help="name of the key in `keys list`")
    for command in (adding, listing, revoking):
        command.add_argument(
            "--keys-file",
            type=Path,
            metavar="PATH",
            help=f"keys file; a running server picks up changes. Default: ${PATH_VARIABLE}.",
        )


def _add_key_arguments(adding: argparse.ArgumentParser) -> None:
    adding.add_argument("name", metavar="NAME", help="name of the key in logs and lists")
    adding.add_argument(
        "--scope",
        dest="scopes",
        action="append",
        choices=SCOPES,
        help=f"scope of the key; repeatable. Default: {', '.join(_DEFAULT_SCOPES)}.",
    )
    adding.add_argument(
        "--model",
        dest="models",
        action="append",
        metavar="NAME",
        help="model that the key may use, or a pattern (`org/*`); repeatable. Default: all.",
    )
    for limit, what in (
        ("requests-per-minute", "requests per minute"),
        ("tokens-per-minute", "tokens per minute, prompts and outputs together"),
        ("max-concurrent-requests", "concurrent requests"),
    ):
        adding.add_argument(
            f"--{limit}", type=_count, metavar="NUMBER", help=f"maximum {what}. Default: no limit."
        )
    adding.add_argument(
        "--priority",
        type=int,
        default=0,
        metavar="NUMBER",
        help="queue priority of this key's requests (lower runs first). Default: 0.",
    )
    adding.add_argument(
        "--isolate-prefix-cache",
        action="store_true",
        help="do not share the prefix cache with other keys",
    )
    adding.add_argument(
        "--expires-in-days",
        type=_count,
        metavar="NUMBER",
        help="days until it expires. Default: never.",
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number above 0")
    return int(text)


def run(arguments: Mapping[str, Any]) -> str | None:
    """Returns the error on one line, or None."""
    path = arguments["keys_file"] or os.environ.get(PATH_VARIABLE)
    if path is None:
        return f"keys: no keys file; set --keys-file or {PATH_VARIABLE}"
    try:
        _COMMANDS[arguments["keys_command"]](Path(path), arguments)
    except (_KeysError, InvalidKeysFile) as error:
        return f"keys: {error}"
    except OSError as error:
        return f"keys: {path}: {error.strerror}"
    return None


def _add(path: Path, arguments: Mapping[str, Any]) -> None:
    name = arguments["name"]
    if not keys_file.NAME.fullmatch(name):
        raise _KeysError(
            f"invalid name '{name}': use up to 64 letters, digits and '._-', and begin with a "
            "letter or digit"
        )
    now, days = datetime.now(UTC).replace(microsecond=0), arguments["expires_in_days"]
    scopes: list[KeyScope] = arguments["scopes"] or _DEFAULT_SCOPES
    secret = new_secret()
    key = Key(
        name=name,
        digest=digest_of(secret.encode()),
        scopes=frozenset(scopes),
        models=arguments["models"],
        limits=KeyLimits(**{each: arguments[each] for each in KeyLimits.__dataclass_fields__}),
        priority=arguments["priority"],
        isolate_prefix_cache=arguments["isolate_prefix_cache"],
        created=now,
        expires=None if days is None else _after(now, days),
    )
    try:
        keys_file.add(path, key)
    except KeyExists:
        raise _KeysError(f"{path} already has a key '{name}'; revoke it first") from None
    sys.stderr.write(f"Added key '{name}' to {path}. It is shown only once:\n")
    sys.stdout.write(f"{secret}\n")


def _after(now: datetime, days: int) -> datetime:
    try:
        return now + timedelta(days=days)
    except OverflowError:
        raise _KeysError(f"--expires-in-days: {days} days is too far in the future") from None


def _list(path: Path, arguments: Mapping[str, Any]) -> None:
    write_table(_COLUMNS, map(_row, keys_file.read(path)))


def _revoke(path: Path, arguments: Mapping[str, Any]) -> None:
    try:
        keys_file.revoke(path, arguments["name"])
    except UnknownKey:
        raise _KeysError(f"{path} has no key '{arguments['name']}'") from None
    sys.stderr.write(f"Removed key '{arguments['name']}' from {path}.\n")


_COMMANDS: Mapping[str, Callable[[Path, Mapping[str, Any]], None]] = {
    "add": _add,
    "list": _list,
    "revoke": _revoke,
}


def _row(key: Key) -> tuple[str, ...]:
    scopes = ",".join(scope for scope in SCOPES if scope in key.scopes)
    models = "all" if key.models is None else ",".join(key.models)
    return key.name, key.digest[:8], scopes, models, _limits(key), _expiry(key)


def _limits(key: Key) -> str:
    limits = key.limits
    parts = [
        (limits.requests_per_minute, "{} requests/min"),
        (limits.tokens_per_minute, "{} tokens/min"),
        (limits.max_concurrent_requests, "{} concurrent"),
        (key.priority or None, "priority {}"),
        (key.isolate_prefix_cache or None, "isolated prefix cache"),
    ]
    return ", ".join(form.format(value) for value, form in parts if value is not None) or "none"


def _expiry(key: Key) -> str:
    if key.expires is None:
        return "never"
    return f"{key.expires:%Y-%m-%d %H:%M}{' (expired)' if key.is_expired() else ''}"
