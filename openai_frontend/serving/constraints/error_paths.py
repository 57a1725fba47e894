"""Which of a request's schemas an engine means that refuses one of those in a grammar."""

from collections.abc import Iterator, Mapping
from typing import Any

from openai_frontend.serving.constraints.formats import Format


def field_names(whole: Format, schemas: Mapping[str, Any], otherwise: str) -> dict[str, str]:
    """The engine counts the schemas of a structural tag in the order of its text, and names the
    one that it refuses `structured_outputs.schemas[2]`. `schemas` are the request's by place; of
    one that is a part of those, `otherwise` is told.
    """
    places: dict[int, str] = {}  # by identity: the grammar holds the request's own
    for at, schema in schemas.items():
        places.setdefault(id(schema), at)
    return {
        f"structured_outputs.schemas[{number}]": places.get(id(schema), otherwise)
        for number, schema in enumerate(_schemas(whole))
    }


def _schemas(part: Any) -> Iterator[Any]:
    if isinstance(part, list):
        for each in part:
            yield from _schemas(each)
    elif isinstance(part, dict):
        if part.get("type") == "json_schema":
            yield part.get("json_schema")
            return
        for each in part.values():
            yield from _schemas(each)
