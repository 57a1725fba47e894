"""The table of settings: flag, environment variable, YAML key and value format of each."""

from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from openai_frontend.config.settings import GROUPS
from openai_frontend.config.types import SECRET, form

ENVIRONMENT_PREFIX = "OPENAI_FRONTEND_"


@dataclass(frozen=True, slots=True)
class Option:
    name: str  # also the YAML key
    group: str
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
        Option(name, group.__doc__ or "", field)
        for group in GROUPS
        for name, field in group.model_fields.items()
    ]
