"""The file of keys: YAML, or JSON where its name ends so. No message shows what stands in it, for
that may be a key where its digest should be.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import orjson
import yaml
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from openai_frontend.auth.keys import Key, KeyLimits
from openai_frontend.auth.scopes import SCOPES, KeyScope
from openai_frontend.config import strict_yaml, validation

MAX_BYTES = 8 * 1024 * 1024

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_SHOWABLE = re.compile(r"[a-z][a-z0-9_]{0,31}")

_HEAD = """\
# The API keys of openai-frontend: `openai-frontend keys add|list|revoke`, docs/authentication.md.
# It holds no key: sha256 is the digest of one.
"""

_Count = Annotated[int, Field(strict=True, ge=1, le=2**53)]
_Model = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=128)]


class InvalidKeysFile(Exception):
    """A file of keys that cannot be used; the message is one line that names the place."""


class KeyPolicy(BaseModel):
    """What a key may have beside its scopes, as it is written."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    models: Annotated[list[_Model], Field(min_length=1)] | None = None
    requests_per_minute: _Count | None = None
    tokens_per_minute: _Count | None = None
    max_concurrent_requests: _Count | None = None
    priority: Annotated[int, Field(strict=True, ge=-(2**31), lt=2**31)] = 0
    isolate_prefix_cache: Annotated[bool, Field(strict=True)] = False

    def limits(self) -> KeyLimits:
        """Those that a quota is made of."""
        return KeyLimits(**{name: getattr(self, name) for name in KeyLimits.__dataclass_fields__})


class _Entry(KeyPolicy):
    """One key as it is written."""

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
    """The keys of a file. Raises InvalidKeysFile."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidKeysFile(f"{path}: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise InvalidKeysFile(f"{path}: more than {MAX_BYTES} bytes")
    try:
        return parse(content, as_json=path.suffix == ".json")
    except InvalidKeysFile as error:
        raise InvalidKeysFile(f"{path}: {error}") from None


def parse(content: bytes, *, as_json: bool = False) -> list[Key]:
    """The keys of a file's content. Raises InvalidKeysFile."""
    given = _json(content) if as_json else _yaml(content)
    try:
        entries = _File.model_validate(given).keys
    except ValidationError as error:
        raise InvalidKeysFile(_first_problem(error)) from None
    for field in ("name", "sha256"):
        _check_unique([getattr(entry, field) for entry in entries], field)
    return [entry.key() for entry in entries]


def _json(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise InvalidKeysFile(f"line {error.lineno} is no JSON") from None


def _yaml(content: bytes) -> Any:
    """What the loader says of the bytes is not told."""
    try:
        return strict_yaml.parse(content.decode())
    except strict_yaml.InvalidYaml as error:
        place = f"line {error.line}" if error.line else "it"
        raise InvalidKeysFile(f"{place} is no YAML") from None
    except UnicodeDecodeError:
        raise InvalidKeysFile("it is no YAML") from None


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
        return f"{place}: there is no such field"
    return f"{place or 'the file'}: {validation.describe(problem)}"


def _check_unique(values: Sequence[str], field: str) -> None:
    seen: dict[str, int] = {}
    for index, value in enumerate(values):
        if value in seen:
            raise InvalidKeysFile(f"keys[{index}].{field}: that of keys[{seen[value]}]")
        seen[value] = index


def render(keys: Iterable[Key], *, as_json: bool = False) -> bytes:
    """The content of a file that holds these keys."""
    content = {"keys": [_entry(key) for key in keys]}
    if as_json:
        return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    return (_HEAD + yaml.safe_dump(content, sort_keys=False)).encode()


def _entry(key: Key) -> dict[str, Any]:
    """Only what is not the default."""
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
