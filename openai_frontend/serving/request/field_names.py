"""A dialect's own names of fields, in the errors of code that knows only OpenAI's."""

import re
from collections.abc import Mapping
from copy import copy

from openai_frontend.errors import InvalidRequest

# The first part of a path such as `tools[0].function`, and the first two without an index
_FIELD = re.compile(r"[A-Za-z_]+")
_MEMBER = re.compile(r"[A-Za-z_]+\.[A-Za-z_]+")


def renamed(error: InvalidRequest, names: Mapping[str, str]) -> InvalidRequest:
    """The error with the dialect's name of the field, in `param` and in the message's quotes."""
    if error.param is None:
        return error
    other = copy(error)
    other.param = _path(error.param, names)
    other.message = error.message.replace(f"'{error.param}'", f"'{other.param}'")
    return other


def renamed_fields(fields: Mapping[str, str], names: Mapping[str, str]) -> Mapping[str, str]:
    """The engine's names of fields -> the dialect's. `fields` has OpenAI's."""
    return {**names, **{engine: _path(field, names) for engine, field in fields.items()}}


def _path(path: str, names: Mapping[str, str]) -> str:
    member = _MEMBER.match(path)
    if member is not None and member[0] in names:
        return names[member[0]] + path[member.end() :]
    field = _FIELD.match(path)
    return path if field is None else names.get(field[0], field[0]) + path[field.end() :]
