"""The parts of a structural tag, xgrammar's form of a grammar, as plain dicts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

Format = dict[str, Any]


class Unconstrainable(Exception):
    """No grammar can express this constraint; the message says why."""


# Up to two line breaks or spaces follow reasoning and calls.
GAP: Format = {"type": "regex", "pattern": r"[ \n]{0,2}"}


def const(text: str) -> Format:
    """Exactly this text."""
    return {"type": "const_string", "value": text}


def any_text(*excludes: str, most: int | None = None) -> Format:
    """Text without any of `excludes`, at most `most` characters."""
    form: Format = {"type": "any_text"}
    if excludes:
        form["excludes"] = list(excludes)
    return form if most is None else {**form, "max_chars": most}


def regex(pattern: str) -> Format:
    """Text that the pattern matches in full."""
    return {"type": "regex", "pattern": pattern}


def grammar(text: str) -> Format:
    """Text that the first rule matches: EBNF, or Lark if the engine supports it."""
    return {"type": "grammar", "grammar": text}


def json_value(schema: Mapping[str, Any] | bool) -> Format:
    """JSON that matches the schema, with at most one space between its parts
    (docs/decisions/0012-constraints.md).
    """
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": 1}


def sequence(*parts: Format) -> Format:
    return parts[0] if len(parts) == 1 else {"type": "sequence", "elements": list(parts)}


def either(*choices: Format) -> Format:
    return choices[0] if len(choices) == 1 else {"type": "or", "elements": list(choices)}


def optional(part: Format) -> Format:
    return {"type": "optional", "content": part}


def star(part: Format) -> Format:
    """Zero or more repetitions."""
    return {"type": "star", "content": part}


def tag(begin: str, content: Format, end: str = "") -> Format:
    """Content between two texts."""
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def listed(tags: Sequence[Format], separator: str, *, one: bool) -> Format:
    """One tag or more, with only the separator between them."""
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": one,
    }


def within_text(triggers: Sequence[str], tags: Sequence[Format], *, one: bool) -> Format:
    """Any text, in which a trigger starts one of the tags."""
    return {
        "type": "triggered_tags",
        "triggers": list(triggers),
        "tags": list(tags),
        "at_least_one": False,
        "stop_after_first": one,
    }


def structural_tag(form: Format) -> str:
    """The JSON text for engines."""
    return orjson.dumps({"type": "structural_tag", "format": form}).decode()


def field_names(
    whole: Format, schemas: Iterable[tuple[str, Any]], otherwise: str
) -> dict[str, str]:
    """The engine's names of schemas -> request fields, for its errors.

    The engine numbers the schemas of a structural tag in the order of its text:
    `structured_outputs.schemas[2]`. `schemas` are those of request fields and of their parts.
    """
    places: dict[int, str] = {}  # by identity: the grammar contains the request's objects
    for at, schema in schemas:
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
