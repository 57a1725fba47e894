"""`keys add|list|revoke`: the keys of a file. A key itself is printed once and kept nowhere."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from openai_frontend.auth import keys_file
from openai_frontend.auth.keys import SCOPES, Key, KeyLimits, KeyScope, digest_of, new_secret
from openai_frontend.auth.keys_file import InvalidKeysFile, KeyExists, UnknownKey

PATH_VARIABLE = "OPENAI_FRONTEND_KEYS_FILE"

_DEFAULT_SCOPES: list[KeyScope] = ["inference", "models"]
_COLUMNS = ("name", "digest", "scopes", "models", "limits", "expires")


class _Refused(Exception):
    """The message is one line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The three commands and their options."""
    commands = parser.add_subparsers(dest="keys_command", required=True, metavar="COMMAND")
    adding = commands.add_parser("add", help="make a key and print it, this once")
    adding.add_argument("name", metavar="NAME", help="what the log and lists call it")
    adding.add_argument(
        "--scope",
        dest="scopes",
        action="append",
        choices=SCOPES,
        help=f"what it is for; repeat it for more. Default: {', '.join(_DEFAULT_SCOPES)}.",
    )
    adding.add_argument(
        "--model",
        dest="models",
        action="append",
        metavar="NAME",
        help="a model that it may use, or a pattern (`org/*`); repeat it. Default: all.",
    )
    for limit, what in (
        ("requests-per-minute", "requests in a minute"),
        ("tokens-per-minute", "tokens in a minute, prompts and answers"),
        ("max-concurrent-requests", "requests at work at the same time"),
    ):
        adding.add_argument(f"--{limit}", type=_count, metavar="NUMBER", help=f"most {what}")
    adding.add_argument(
        "--priority",
        type=int,
        default=0,
        metavar="NUMBER",
        help="its requests' place where they wait; lower numbers first. Default: 0.",
    )
    adding.add_argument(
        "--isolate-prefix-cache",
        action="store_true",
        help="share the prefix cache with no other key",
    )
    adding.add_argument(
        "--expires-in-days", type=_count, metavar="NUMBER", help="Default: it does not expire."
    )
    listing = commands.add_parser("list", help="show the keys, without what they are")
    revoking = commands.add_parser("revoke", help="take a key out")
    revoking.add_argument("name", metavar="NAME", help="as `list` shows it")
    for command in (adding, listing, revoking):
        command.add_argument(
            "--keys-file",
            type=Path,
            metavar="PATH",
            help=f"the file; a running server follows it. Default: ${PATH_VARIABLE}.",
        )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number above 0")
    return int(text)


def run(given: Mapping[str, Any]) -> str | None:
    """Does what the command line says; returns what was wrong, on one line, or None."""
    path = given["keys_file"] or os.environ.get(PATH_VARIABLE)
    if path is None:
        return f"keys: which file? Give --keys-file, or set {PATH_VARIABLE}"
    try:
        _COMMANDS[given["keys_command"]](Path(path), given)
    except (_Refused, InvalidKeysFile) as error:
        return f"keys: {error}"
    except OSError as error:
        return f"keys: {path}: {error.strerror}"
    return None


def _add(path: Path, given: Mapping[str, Any]) -> None:
    name = given["name"]
    if not keys_file.NAME.fullmatch(name):
        raise _Refused("a name is up to 64 letters, digits and '._-', the first no sign")
    now, days = datetime.now(UTC).replace(microsecond=0), given["expires_in_days"]
    scopes: list[KeyScope] = given["scopes"] or _DEFAULT_SCOPES
    secret = new_secret()
    key = Key(
        name=name,
        digest=digest_of(secret.encode()),
        scopes=frozenset(scopes),
        models=given["models"],
        limits=KeyLimits(**{each: given[each] for each in KeyLimits.__dataclass_fields__}),
        priority=given["priority"],
        isolate_prefix_cache=given["isolate_prefix_cache"],
        created=now,
        expires=None if days is None else _after(now, days),
    )
    try:
        keys_file.add(path, key)
    except KeyExists:
        raise _Refused(f"{path} has a key '{name}' already") from None
    sys.stderr.write(f"The key '{name}' is in {path}. It is shown this once:\n")
    sys.stdout.write(f"{secret}\n")


def _after(now: datetime, days: int) -> datetime:
    try:
        return now + timedelta(days=days)
    except OverflowError:
        raise _Refused("--expires-in-days: no calendar goes so far") from None


def _list(path: Path, given: Mapping[str, Any]) -> None:
    rows = [_COLUMNS, *map(_row, keys_file.read(path))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def _revoke(path: Path, given: Mapping[str, Any]) -> None:
    try:
        keys_file.revoke(path, given["name"])
    except UnknownKey:
        raise _Refused(f"{path} has no key '{given['name']}'") from None
    sys.stderr.write(f"The key '{given['name']}' is no longer in {path}.\n")


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
    told = [
        (limits.requests_per_minute, "{} requests/min"),
        (limits.tokens_per_minute, "{} tokens/min"),
        (limits.max_concurrent_requests, "{} at once"),
        (key.priority or None, "priority {}"),
        (key.isolate_prefix_cache or None, "isolated prefix cache"),
    ]
    return ", ".join(form.format(value) for value, form in told if value is not None) or "none"


def _expiry(key: Key) -> str:
    if key.expires is None:
        return "never"
    return f"{key.expires:%Y-%m-%d %H:%M}{' (over)' if key.is_expired() else ''}"
