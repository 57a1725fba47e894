"""Loads settings from flags, the environment and a YAML file, and lists their names in each."""

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from openai_frontend.config import bucket_repositories, strict_yaml
from openai_frontend.config.removed_settings import replacement
from openai_frontend.config.restricted_groups import RESTRICTING_OPTIONS
from openai_frontend.config.settings import GROUPS, Settings
from openai_frontend.config.types import SECRET, form
from openai_frontend.errors import did_you_mean

ENVIRONMENT_PREFIX = "OPENAI_FRONTEND_"


@dataclass(frozen=True, slots=True)
class Option:
    name: str  # also the YAML key
    group: str
    help_group: str  # its name for `--help`
    field: FieldInfo

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def environment(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def secret(self) -> bool:
        """Whether messages must not contain the value."""
        return self.field.json_schema_extra == SECRET

    @property
    def type(self) -> Any:
        """The type of the value, without None."""
        members = get_args(self.field.annotation)
        return members[0] if members[1:] == (type(None),) else self.field.annotation

    @property
    def repeats(self) -> bool:
        """Whether the flag can be repeated."""
        return get_origin(self.type) in (list, dict)

    @property
    def form(self) -> str:
        """The format of a value for `--help`; empty for a switch."""
        return form(self.type)

    @property
    def default_text(self) -> str:
        """The default as text; empty if there is none."""
        return _as_text(self.field.default)


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_as_text, value))
    return "" if value is None or value == {} else str(value)


def options() -> list[Option]:
    """All settings, group by group."""
    return [
        Option(name, group.__doc__ or "", help_group, field)
        for help_group, group in GROUPS.items()
        for name, field in group.model_fields.items()
    ]


logger = logging.getLogger(__name__)


class InvalidSettings(Exception):
    """An invalid setting. The message is one line that names the setting and its source."""


def load(
    *,
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    config: Path | None = None,
    parsers: Collection[str] | None = None,
) -> Settings:
    """Flags override the environment, which overrides the file, which overrides defaults.

    `parsers` are the valid names of parsers; None accepts any. Raises InvalidSettings.
    """
    flags, environment = flags or {}, environment or {}
    values = {} if config is None else _read(config)
    sources = {name: f"{config}: {name}" for name in values}
    _check_names(environment)
    for option in options():
        if environment.get(option.environment, "").strip():  # Compose's ${VAR:-} is empty
            values[option.name] = environment[option.environment].strip()
            sources[option.name] = option.environment
        if option.name in flags:
            values[option.name] = flags[option.name]
            sources[option.name] = option.flag
    return _validated(values, sources, parsers)


def from_values(
    values: Mapping[str, Any], *, source: str, parsers: Collection[str] | None = None
) -> Settings:
    """Settings under the names of the file, which another file contains at `source`.

    Raises InvalidSettings.
    """
    _refuse_unknown(values, source)
    sources = {name: f"{source}: {name}" for name in values}
    return _validated(values, sources, parsers)


def _validated(
    values: Mapping[str, Any], sources: Mapping[str, str], parsers: Collection[str] | None
) -> Settings:
    try:
        return Settings.model_validate(values, context={"parsers": parsers})
    except ValidationError as error:
        raise InvalidSettings(_first_problem(error, sources)) from None


def read_yaml(path: Path) -> Any:
    """Raises InvalidSettings with the path."""
    try:
        return strict_yaml.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSettings(f"{path}: {error.strerror}") from None
    except (strict_yaml.InvalidYaml, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{path}: {error}") from None


def _read(config: Path) -> dict[str, Any]:
    values = read_yaml(config)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise InvalidSettings(f"{config}: must contain settings as 'name: value' lines")
    _refuse_unknown(values, str(config))
    return values


def _refuse_unknown(names: Iterable[Any], source: str) -> None:
    for name in names:
        if name not in Settings.model_fields:
            if (instead := replacement(str(name))) is not None:
                raise InvalidSettings(f"{source}: setting '{name}' was removed: {instead}")
            guess = did_you_mean(str(name), Settings.model_fields)
            raise InvalidSettings(f"{source}: unknown setting '{name}'{guess}")


def _check_names(environment: Mapping[str, str]) -> None:
    """An unknown variable is only a warning: Kubernetes sets such variables for a service named
    openai-frontend.
    """
    known = {option.environment for option in options()}
    for name, text in environment.items():
        if not name.startswith(ENVIRONMENT_PREFIX) or name in known:
            continue
        instead = replacement(name.removeprefix(ENVIRONMENT_PREFIX).lower())
        if instead is None:
            guess = did_you_mean(name, known)
            logger.warning("environment variable %s is not a setting%s", name, guess)
        elif text.strip():
            raise InvalidSettings(f"{name}: the setting was removed: {instead}")


def _first_problem(error: ValidationError, sources: Mapping[str, str]) -> str:
    problem = error.errors()[0]
    name, *inner = (str(part) for part in problem["loc"])
    where = "".join(f"[{part}]" for part in inner)
    reason = strict_yaml.describe_problem(problem)
    is_secret = name in _SECRET or bucket_repositories.may_contain_secret(problem["input"])
    is_secret |= any(option in str(problem["input"]) for option in RESTRICTING_OPTIONS)
    got = "" if is_secret else f" (got {problem['input']!r})"
    return f"{sources.get(name, name)}{where}: {reason}{got}"


_SECRET = {option.name for option in options() if option.secret}
