"""Whether an answer matches its schema, independently of the grammars."""

import ipaddress
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time
from fractions import Fraction
from typing import Any

import jsonschema
import regex

from scripts.constraint_corpus.ecma import compiled

_DURATION = regex.compile(
    r"P(\d+W|(?=.)(\d+Y)?(\d+M)?(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)"
)
_LABELS = regex.compile(r"(?=.{1,253}$)([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.?)+")
_POINTER = regex.compile(r"(/([^~/]|~[01])*)*")


def _zoned(text: str) -> time:
    read = time.fromisoformat(text.replace("Z", "+00:00").replace("z", "+00:00"))
    if read.tzinfo is None:
        raise ValueError(text)
    return read


def _matches(pattern: Any) -> Callable[[str], Any]:
    def check(text: str) -> None:
        if not pattern.fullmatch(text):
            raise ValueError(text)

    return check


# Format -> a function that raises ValueError
_FORMATS: Mapping[str, Callable[[str], Any]] = {
    "date": date.fromisoformat,
    "time": _zoned,
    "date-time": lambda text: (datetime.fromisoformat(text), _zoned(text[11:])),
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "uuid": uuid.UUID,
    "email": _matches(regex.compile(r"[^@\s]+@[^@\s]+|\".*\"@[^@\s]+")),
    "hostname": _matches(_LABELS),
    "uri": _matches(regex.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]*")),
    "uri-reference": _matches(regex.compile(r"[!-~]*")),
    "duration": _matches(_DURATION),
    "json-pointer": _matches(_POINTER),
    "relative-json-pointer": _matches(regex.compile(rf"(0|[1-9]\d*)(#|{_POINTER.pattern})")),
}


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[Any]:
    if isinstance(instance, str) and not compiled(pattern).search(instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, _: Any
) -> Iterator[Any]:
    for pattern, schema in patterns.items() if isinstance(instance, dict) else ():
        for name, value in instance.items():
            if compiled(pattern).search(name):
                yield from validator.descend(value, schema, path=name, schema_path=pattern)


def _additional(
    validator: Any, schema: Any, instance: Any, parent: Mapping[str, Any]
) -> Iterator[Any]:
    patterns = [compiled(pattern) for pattern in parent.get("patternProperties") or ()]
    for name, value in instance.items() if isinstance(instance, dict) else ():
        described = name in (parent.get("properties") or {})
        if not described and not any(each.search(name) for each in patterns):
            yield from validator.descend(value, schema, path=name)


def _multiple_of(_: Any, divisor: float, instance: Any, __: Any) -> Iterator[Any]:
    """In decimals: binary fractions have no tenths."""
    is_number = isinstance(instance, int | float) and not isinstance(instance, bool)
    if is_number and Fraction(repr(instance)) % Fraction(repr(divisor)):
        yield jsonschema.ValidationError(f"{instance!r} is not a multiple of {divisor!r}")


_KEYWORDS = {
    "multipleOf": _multiple_of,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
}


_OLDER = jsonschema.Draft7Validator.VALIDATORS
_NEWER = jsonschema.Draft202012Validator.VALIDATORS


def _items(validator: Any, items: Any, instance: Any, parent: Any) -> Iterator[Any]:
    """Also as before 2020-12: a list with a schema for each item."""
    keyword = (_OLDER if isinstance(items, list) else _NEWER)["items"]
    yield from keyword(validator, items, instance, parent) or ()


def _additional_items(validator: Any, rest: Any, instance: Any, parent: Any) -> Iterator[Any]:
    """Of what follows a list of `items`; without one, 2020-12 ignores the keyword."""
    if isinstance(parent.get("items"), list):
        yield from _OLDER["additionalItems"](validator, rest, instance, parent) or ()


_TUPLES = {"items": _items, "additionalItems": _additional_items}


def violation(schema: Any, text: str) -> str:
    """What is wrong with the answer; empty if nothing is."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"not JSON: {error}"
    try:
        return _first_error(schema, value)
    except (regex.error, RecursionError) as error:
        return f"no validator: {error}"


def _first_error(schema: Any, value: Any) -> str:
    dialect = schema.get("$schema") if isinstance(schema, dict) else None
    draft: Any = jsonschema.Draft202012Validator
    if dialect and "2020-12" not in dialect:
        draft = jsonschema.validators.validator_for(schema, default=draft)
    checker = jsonschema.FormatChecker(formats=())
    for name, check in _FORMATS.items():
        checker.checks(name, raises=(ValueError, IndexError))(_of_text(check))
    keywords = _KEYWORDS | (_TUPLES if draft is jsonschema.Draft202012Validator else {})
    validator = jsonschema.validators.extend(draft, keywords)(schema, format_checker=checker)
    error = jsonschema.exceptions.best_match(validator.iter_errors(value))
    return "" if error is None else error.message[:300]


def _of_text(check: Callable[[str], Any]) -> Callable[[Any], bool]:
    def checked(value: Any) -> bool:
        if isinstance(value, str):
            check(value)
        return True

    return checked
