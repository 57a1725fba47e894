"""Refuses parts of a message that also have the content of another type."""

from collections.abc import Collection, Mapping
from typing import Any

from openai_frontend.errors import InvalidRequest


def check_alone(
    part: Mapping[str, Any], place: str, contents: Mapping[str, Collection[str]]
) -> None:
    """Refuse content that the model would not see, because the part's type has no such member.

    `contents`: type -> the members with its content. Parts of other types are not checked.
    """
    kind = part["type"]
    if (own := contents.get(kind)) is None:
        return
    others = {name for names in contents.values() for name in names}.difference(own)
    for name in sorted(others & part.keys()):
        if part[name]:  # some clients send empty members
            param = f"{place}.{name}"
            message = f"Unsupported parameter: '{param}' cannot be used with the type '{kind}'."
            raise InvalidRequest(message, param=param, code="unsupported_parameter")
