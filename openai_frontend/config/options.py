"""The settings as a table: each with its flag, environment variable, YAML key and form."""

from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from openai_frontend.config.settings import GROUPS
from openai_frontend.config.types import SECRET, form

ENVIRONMENT_PREFIX = "OPENAI_FRONTEND_"


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table."""

    name: str  # also the YAML key
    group: str
    field: FieldInfo

    @property
    def flag(self) -> str:
        """As on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def environment(self) -> str:
        """The environment variable."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def secret(self) -> bool:
        """True if no message may show its value."""
        return self.field.json_schema_extra == SECRET

    @property
    def type(self) -> Any:
        """The value's type, without None."""
        members = get_args(self.field.annotation)
        return members[0] if members[1:] == (type(None),) else self.field.annotation

    @property
    def repeats(self) -> bool:
        """True where it may be given again."""
        return get_origin(self.type) in (list, dict)

    @property
    def form(self) -> str:
        """How a value is written; empty for a switch."""
        return form(self.type)

    @property
    def default_text(self) -> str:
        """The default as it would be written; empty where there is none."""
        return _written(self.field.default)


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_written, value))
    return "" if value is None or value == {} else str(value)


def options() -> list[Option]:
    """The table of settings, group by group."""
    return [
        Option(name, group.__doc__ or "", field)
        for group in GROUPS
        for name, field in group.model_fields.items()
    ]
