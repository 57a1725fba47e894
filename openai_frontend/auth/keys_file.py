"""Reads, edits and polls the keys file: YAML, or JSON if its name ends in `.json`.

Error messages never quote the file: it may contain a key in place of its digest. Edits replace the
file atomically, so a running server reads either the old or the new content.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import orjson
import yaml
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from openai_frontend.auth.api_keys import SCOPES, ApiKeys, Key, KeyScope
from openai_frontend.auth.rate_limit import KeyLimits, SharedRequestLimits
from openai_frontend.config import strict_yaml
from openai_frontend.runtime.files import file_stamp, replace_file
from openai_frontend.runtime.heartbeat import Heartbeat

logger = logging.getLogger(__name__)

MAX_BYTES = 8 * 1024 * 1024

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_SHOWABLE = re.compile(r"[a-z][a-z0-9_]{0,31}")

_HEAD = """\
# The API keys of openai-frontend: `openai-frontend keys add|list|revoke`, docs/authentication.md.
# It contains no secrets: sha256 is the digest of a key.
"""

_Count = Annotated[int, Field(strict=True, ge=1, le=2**53)]
_Model = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=128)]


class InvalidKeysFile(Exception):
    """The message is one line with the position of the error."""


class UnknownKey(Exception):
    """The file has no key of that name."""


class KeyExists(Exception):
    """The file already has a key of that name."""


class KeyPolicy(BaseModel):
    """The models and limits of a key, as in the keys file and in a token's claim."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    models: Annotated[list[_Model], Field(min_length=1)] | None = None
    requests_per_minute: _Count | None = None
    tokens_per_minute: _Count | None = None
    max_concurrent_requests: _Count | None = None
    priority: Annotated[int, Field(strict=True, ge=-(2**31), lt=2**31)] = 0
    isolate_prefix_cache: Annotated[bool, Field(strict=True)] = False

    def limits(self) -> KeyLimits:
        return KeyLimits(**{name: getattr(self, name) for name in KeyLimits.__dataclass_fields__})


class _Entry(KeyPolicy):
    name: Annotated[str, StringConstraints(strict=True, pattern=rf"^{NAME.pattern}$")]
    sha256: Annotated[str, StringConstraints(strict=True, pattern=r"^[0-9a-f]{64}$")]
    scopes: Annotated[list[KeyScope], Field(min_length=1)]
    created: AwareDatetime | None = None
    expires: AwareDatetime | None = None

    def key(self) -> Key:
        return Key(
            name=self.name,
            digest=self.sha256,
            scopes=frozenset(self.scopes),
            models=self.models,
            limits=self.limits(),
            priority=self.priority,
            isolate_prefix_cache=self.isolate_prefix_cache,
            created=self.created,
            expires=self.expires,
        )


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    keys: list[_Entry]


def read(path: Path) -> list[Key]:
    """Raises InvalidKeysFile."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidKeysFile(f"{path}: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise InvalidKeysFile(f"{path}: larger than {MAX_BYTES} bytes")
    try:
        return parse(content, as_json=path.suffix == ".json")
    except InvalidKeysFile as error:
        raise InvalidKeysFile(f"{path}: {error}") from None


def parse(content: bytes, *, as_json: bool = False) -> list[Key]:
    """Raises InvalidKeysFile."""
    document = _json(content) if as_json else _yaml(content)
    try:
        entries = _File.model_validate(document).keys
    except ValidationError as error:
        raise InvalidKeysFile(_first_problem(error)) from None
    for field in ("name", "sha256"):
        _check_unique([getattr(entry, field) for entry in entries], field)
    return [entry.key() for entry in entries]


def _json(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise InvalidKeysFile(f"invalid JSON in line {error.lineno}") from None


def _yaml(content: bytes) -> Any:
    try:
        return strict_yaml.parse(content.decode())
    except strict_yaml.InvalidYaml as error:
        position = f" in line {error.line}" if error.line else ""
        raise InvalidKeysFile(f"invalid YAML{position}") from None
    except UnicodeDecodeError:
        raise InvalidKeysFile("invalid YAML: the file is not UTF-8") from None


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_input=False, include_url=False)[0]
    place = ""
    for part in problem["loc"]:
        if isinstance(part, int):
            place += f"[{part}]"
        else:
            shown = part if _SHOWABLE.fullmatch(part) else "?"
            place += f".{shown}" if place else shown
    if problem["type"] == "extra_forbidden":
        return f"{place}: unknown field"
    return f"{place or 'the file'}: {strict_yaml.describe_problem(problem)}"


def _check_unique(values: Sequence[str], field: str) -> None:
    seen: dict[str, int] = {}
    for index, value in enumerate(values):
        if value in seen:
            raise InvalidKeysFile(f"keys[{index}].{field}: already used by keys[{seen[value]}]")
        seen[value] = index


def render(keys: Iterable[Key], *, as_json: bool = False) -> bytes:
    """The content of a keys file."""
    content = {"keys": [_entry(key) for key in keys]}
    if as_json:
        return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    return (_HEAD + yaml.safe_dump(content, sort_keys=False)).encode()


def _entry(key: Key) -> dict[str, Any]:
    """Without fields that have their default."""
    limits = {name: getattr(key.limits, name) for name in KeyLimits.__dataclass_fields__}
    fields = {
        "name": key.name,
        "sha256": key.digest,
        "scopes": [scope for scope in SCOPES if scope in key.scopes],
        "models": None if key.models is None else list(key.models),
        **limits,
        "priority": key.priority or None,
        "isolate_prefix_cache": key.isolate_prefix_cache or None,
        "created": key.created and key.created.isoformat(timespec="seconds"),
        "expires": key.expires and key.expires.isoformat(timespec="seconds"),
    }
    return {name: value for name, value in fields.items() if value is not None}


def add(path: Path, key: Key) -> None:
    """Creates the file if it does not exist. Raises KeyExists, InvalidKeysFile or OSError."""

    def with_key(keys: list[Key]) -> list[Key]:
        if any(each.name == key.name for each in keys):
            raise KeyExists
        return [*keys, key]

    _change(path, with_key)


def revoke(path: Path, name: str) -> None:
    """Removes a key. Raises UnknownKey, InvalidKeysFile or OSError."""

    def without_key(keys: list[Key]) -> list[Key]:
        others = [each for each in keys if each.name != name]
        if len(others) == len(keys):
            raise UnknownKey
        return others

    _change(path, without_key)


def _change(path: Path, change: Callable[[list[Key]], list[Key]]) -> None:
    path = path.resolve()  # a symbolic link stays a link
    with _locked(path.parent):
        as_json = path.suffix == ".json"
        keys = read(path) if path.exists() else []
        content = render(change(keys), as_json=as_json)
        parse(content, as_json=as_json)  # an invalid file would block all further edits
        replace_file(path, content, mode=0o600)  # for the owner alone


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Serializes commands by a lock on the folder, which leaves no lock file behind."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


POLL_INTERVAL_S = 1.0


class KeysFileWatcher:
    """Keeps `keys` equal to the file, in the background. If the file is invalid, the previous keys
    stay in force.
    """

    def __init__(
        self,
        path: Path,
        static_keys: Sequence[Key] = (),
        shared: SharedRequestLimits | None = None,
    ) -> None:
        """`static_keys` are valid too; if a key is in both, the file's entry applies. `shared`
        counts their requests together with other gateways.

        Raises InvalidKeysFile if the file cannot be read.
        """
        self._path = path
        self._static_keys = static_keys
        self._stamp = file_stamp(path)
        self.keys = ApiKeys([*static_keys, *read(path)], shared)
        _warn_if_others_can_write(path)

    async def watch(self, heartbeat: Heartbeat) -> None:
        """Looks at the file every second, or with the next beat if those of an idle process are
        further apart. Runs until it is cancelled.
        """
        while True:
            await heartbeat.next(POLL_INTERVAL_S)
            await self.refresh()

    async def refresh(self) -> None:
        """Reads the file in a thread if it has changed since it was last read."""
        stamp = await asyncio.to_thread(file_stamp, self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            keys = await asyncio.to_thread(read, self._path)
        except InvalidKeysFile as error:
            logger.error("%s; the previous keys stay in force", error)
            return
        self.keys.replace([*self._static_keys, *keys])
        logger.info("%s: loaded %d keys", self._path, len(self.keys))


def _warn_if_others_can_write(path: Path) -> None:
    """A user who can write the file can grant access to the server."""
    if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        logger.warning("%s: the file is group- or world-writable", path)
