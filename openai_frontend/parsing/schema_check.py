"""Checks a value, or all values of a type at once, against a schema of JSON Schema or OpenAPI.

Reads every draft, never raises, and bounds its work: "not known" is a possible result. A client's
regular expression is run only if it certainly takes little time.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from openai_frontend.parsing.schema_document import REFERENCES, SchemaDocument

Verdict = bool | None  # None: not known

MAX_DEPTH = 64  # of references and subschemas
_MAX_NAME = 64  # characters of names and patterns that are matched
_PATTERN_STEPS = 16  # as long as a match may take
# No groups, no alternatives, and at most one repetition: quadratic time in the name's length
_QUICK = re.compile(r"[^()|*+?{}]*(?:[*+?]|\{[0-9]{0,3},?[0-9]{0,3}\})?[^()|*+?{}]*")

_KINDS = ("null", "boolean", "integer", "number", "string", "array", "object")
_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
_NAMES |= {dict: "object", type(None): "null"}
# With one of these, other keywords show no type
_DECIDING = frozenset(("type", "enum", "const", "anyOf", "oneOf", "allOf", *REFERENCES))
_NUMBER_FORMATS = ("int", "uint", "float", "double", "decimal")


@dataclass(frozen=True, slots=True)
class _AnyOf:
    """All values of a kind."""

    kind: str


ANY = {kind: _AnyOf(kind) for kind in _KINDS}


@dataclass(frozen=True, slots=True)
class Mode:
    """How to read a schema."""

    hints: bool  # keywords about strings show a string, although others may have any value
    exclusive: bool  # `oneOf` allows exactly one alternative


EXACT = Mode(hints=False, exclusive=True)


def kind_of(value: object) -> str:
    """JSON Schema's name for the type of a value."""
    return value.kind if isinstance(value, _AnyOf) else _NAMES[type(value)]


class SchemaCheck:
    """Checks one value. Visits each subschema once, whatever refers to it."""

    def __init__(self, document: SchemaDocument, mode: Mode, steps: int) -> None:
        """`steps`: subschemas to visit. Beyond them, nothing is known."""
        self.document = document
        self.steps = steps
        self._mode = mode
        self._verdicts: dict[tuple[int, int, bool], Verdict] = {}
        self._depth = 0

    def take_steps(self, count: int = 1) -> bool:
        """Whether so many more may be visited."""
        self.steps -= count
        return self.steps >= 0

    def matches(self, pattern: str, name: str) -> Verdict:
        """Whether a pattern matches a name."""
        if len(name) > _MAX_NAME or len(pattern) > _MAX_NAME or not _QUICK.fullmatch(pattern):
            return None
        if not self.take_steps(_PATTERN_STEPS):
            return None
        try:
            return re.search(pattern, name) is not None
        except re.error:
            return None

    def member(self, schema: Mapping[str, Any], name: str, value: object) -> list[Verdict]:
        """Statements of an object's own keywords about one member; may be empty.

        An undecided pattern and `additionalProperties` may apply to a name that is not listed.
        """
        found = (
            [self.verdict(listed[name], value)]
            if name in (listed := mapping_of(schema, "properties"))
            else []
        )
        others: list[object] = []
        for pattern, each in mapping_of(schema, "patternProperties").items():
            matches = self.matches(pattern, name)
            if matches:
                found.append(self.verdict(each, value))
            elif matches is None:
                others.append(each)
        if isinstance(rest := schema.get("additionalProperties"), Mapping) and rest:
            others.append(rest)
        if others and not found:
            return [some(self.verdict(each, value) for each in others)]
        return found

    def verdict(self, schema: object, value: object) -> Verdict:
        """Whether the schema allows the value."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            return None
        key = (id(schema), id(value), self._mode.hints)
        if key not in self._verdicts:
            if self._depth >= MAX_DEPTH or not self.take_steps():
                return None
            self._verdicts[key] = False  # until it is known: a reference to itself allows nothing
            self._depth += 1
            self._verdicts[key] = self._evaluate(schema, value)
            self._depth -= 1
        return self._verdicts[key]

    def _evaluate(self, schema: Mapping[str, Any], value: object) -> Verdict:
        kind = kind_of(value)
        if kind == "null" and schema.get("nullable") is True:
            return True
        if self._mode.hints and (hinted := _hinted_kinds(schema)) and kind not in hinted:
            return False
        return every(
            check(self, schema, value)
            for keyword, (of, check) in _CHECKS.items()
            if keyword in schema and (not of or kind in of)
        )

    def without_hints(self, schema: object, value: object) -> Verdict:
        """The verdict within a condition or a negation, where a hint would mean the opposite."""
        mode, self._mode = self._mode, Mode(hints=False, exclusive=self._mode.exclusive)
        verdict = self.verdict(schema, value)
        self._mode = mode
        return verdict

    def referred(self, schema: Mapping[str, Any], value: object, *, key: str) -> Verdict:
        return self.verdict(self.document.target(schema[key]), value)

    def all_of(self, schema: Mapping[str, Any], value: object) -> Verdict:
        return every(self.verdict(each, value) for each in list_of(schema, "allOf"))

    def any_of(self, schema: Mapping[str, Any], value: object) -> Verdict:
        return some(self.verdict(each, value) for each in list_of(schema, "anyOf"))

    def one_of(self, schema: Mapping[str, Any], value: object) -> Verdict:
        verdicts = [self.verdict(each, value) for each in list_of(schema, "oneOf")]
        if self._mode.exclusive and verdicts.count(True) > 1:
            return False
        return None if verdicts.count(None) and self._mode.exclusive else some(verdicts)

    def negated(self, schema: Mapping[str, Any], value: object) -> Verdict:
        verdict = self.without_hints(schema["not"], value)
        return None if verdict is None else not verdict

    def conditional(self, schema: Mapping[str, Any], value: object) -> Verdict:
        condition = self.without_hints(schema["if"], value)
        branches = [(True, "then"), (False, "else")]
        verdicts = [
            self.verdict(schema.get(key, True), value)
            for holds, key in branches
            if condition in (holds, None)
        ]
        return verdicts[0] if len(set(verdicts)) == 1 else None

    def items(self, schema: Mapping[str, Any], value: object) -> Verdict:
        """The elements of an array, by position and for the rest."""
        if not isinstance(value, list):
            return None
        listed = isinstance(schema.get("items"), list)  # drafts before 2020-12
        first = list_of(schema, "items" if listed else "prefixItems")
        rest = schema.get("additionalItems" if listed else "items", True)
        schemas = [*first[: len(value)], *[rest] * (len(value) - len(first))]
        return every(self.verdict(*each) for each in zip(schemas, value, strict=True))

    def members(self, schema: Mapping[str, Any], value: object) -> Verdict:
        """The members of an object."""
        if not isinstance(value, dict):
            return None
        patterns = mapping_of(schema, "patternProperties")
        closed = schema.get("additionalProperties") is False
        verdicts: list[Verdict] = []
        for name, each in value.items():
            if any(self.matches(pattern, name) is None for pattern in patterns):
                verdicts.append(None)
                continue
            said = self.member(schema, name, each)
            verdicts.append(every(said) if said else not closed)
        return every(verdicts)


def _hinted_kinds(schema: Mapping[str, Any]) -> frozenset[str]:
    """The types that keywords show in a schema that states none; empty if they show none.

    The last hint is a default or examples: they should be values that the schema means.
    """
    if schema.keys() & _DECIDING:
        return frozenset()
    kinds = {kind for key in schema for kind in _KINDS_OF.get(key, ())}
    form = schema.get("format")
    if isinstance(form, str):
        kinds |= set(_NUMBERS) if form.startswith(_NUMBER_FORMATS) else {"string"}
    examples = [schema[key] for key in ("default", "example") if schema.get(key) is not None]
    examples += list_of(schema, "examples")
    if not kinds and examples and all(isinstance(each, str) for each in examples):
        return frozenset(("string",))
    return frozenset(kinds)


def every(verdicts: Iterable[Verdict]) -> Verdict:
    result: Verdict = True
    for verdict in verdicts:
        if verdict is False:
            return False
        if verdict is None:
            result = None
    return result


def some(verdicts: Iterable[Verdict]) -> Verdict:
    result: Verdict = False
    for verdict in verdicts:
        if verdict:
            return True
        if verdict is None:
            result = None
    return result


def mapping_of(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = schema.get(key)
    return value if isinstance(value, Mapping) else {}


def list_of(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _has_type(_: SchemaCheck, schema: Mapping[str, Any], value: object) -> Verdict:
    declared, kind = schema["type"], kind_of(value)
    names = declared if isinstance(declared, list) else [declared]
    if not all(isinstance(name, str) for name in names):
        return None  # schemas as types, in drafts before 4
    lowered = {name.lower() for name in names}  # Gemini's API has them in capitals
    if kind in lowered or "any" in lowered:
        return True
    if kind in _NUMBERS:
        whole = kind == "integer" or (isinstance(value, float) and value.is_integer())
        return "number" in lowered or (whole and "integer" in lowered)
    return kind == "string" and not lowered <= set(_KINDS)


def _in_enum(_: SchemaCheck, schema: Mapping[str, Any], value: object) -> Verdict:
    return _is_one_of(schema["enum"], value)


def _is_const(_: SchemaCheck, schema: Mapping[str, Any], value: object) -> Verdict:
    return _is_one_of([schema["const"]], value)


def _is_one_of(values: object, value: object) -> Verdict:
    if not isinstance(values, list):
        return None
    kind = kind_of(value)
    same_kind = [each for each in values if kind_of(each) == kind or kind in _NUMBERS]
    if isinstance(value, _AnyOf):
        found = any(kind_of(each) == kind for each in same_kind)
        return (True if kind == "null" else None) if found else False
    return value in [each for each in same_kind if not isinstance(each, bool) or kind == "boolean"]


_LIMITS: Mapping[str, Callable[[Any, Any], bool]] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}


def _within(keyword: str, _: SchemaCheck, schema: Mapping[str, Any], value: Any) -> Verdict:
    limit = schema[keyword]
    if limit is True:  # draft 4
        limit = schema.get(keyword.removeprefix("exclusive").lower())
    if isinstance(value, _AnyOf) or not _is_number(limit):
        return None
    return _LIMITS[keyword](value, limit)


def _sized(keyword: str, _: SchemaCheck, schema: Mapping[str, Any], value: Any) -> Verdict:
    limit = schema[keyword]
    if isinstance(value, _AnyOf) or not _is_number(limit):
        return None
    return bool(len(value) >= limit if keyword.startswith("min") else len(value) <= limit)


def _is_multiple(_: SchemaCheck, schema: Mapping[str, Any], value: object) -> Verdict:
    factor = schema["multipleOf"]
    if not isinstance(value, int) or not isinstance(factor, int) or not factor:
        return None  # fractions are not exact
    return value % factor == 0


def _has_required(_: SchemaCheck, schema: Mapping[str, Any], value: object) -> Verdict:
    names = schema["required"]
    if not isinstance(value, dict) or not isinstance(names, list):
        return None
    return all(name in value for name in names)


def _unknown(_: SchemaCheck, schema: Mapping[str, Any], value: object) -> Verdict:
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


Check = Callable[[SchemaCheck, Mapping[str, Any], Any], Verdict]

_NUMBERS = ("integer", "number")
_STRING, _ARRAY, _OBJECT = ("string",), ("array",), ("object",)
_EVERY: tuple[str, ...] = ()

# Keyword -> the kinds of values that it is about, and its check
_CHECKS: Mapping[str, tuple[tuple[str, ...], Check]] = {
    "type": (_EVERY, _has_type),
    "enum": (_EVERY, _in_enum),
    "const": (_EVERY, _is_const),
    "allOf": (_EVERY, SchemaCheck.all_of),
    "anyOf": (_EVERY, SchemaCheck.any_of),
    "oneOf": (_EVERY, SchemaCheck.one_of),
    "not": (_EVERY, SchemaCheck.negated),
    "if": (_EVERY, SchemaCheck.conditional),
    **{key: (_EVERY, partial(SchemaCheck.referred, key=key)) for key in REFERENCES},
    **{key: (_NUMBERS, partial(_within, key)) for key in _LIMITS},
    "multipleOf": (_NUMBERS, _is_multiple),
    **{key: (_STRING, partial(_sized, key)) for key in ("minLength", "maxLength")},
    **dict.fromkeys(("pattern", "format"), (_STRING, _unknown)),
    **{key: (_ARRAY, partial(_sized, key)) for key in ("minItems", "maxItems")},
    **dict.fromkeys(("items", "prefixItems", "additionalItems"), (_ARRAY, SchemaCheck.items)),
    **dict.fromkeys(("contains", "uniqueItems", "unevaluatedItems"), (_ARRAY, _unknown)),
    **{key: (_OBJECT, partial(_sized, key)) for key in ("minProperties", "maxProperties")},
    "properties": (_OBJECT, SchemaCheck.members),
    "patternProperties": (_OBJECT, SchemaCheck.members),
    "additionalProperties": (_OBJECT, SchemaCheck.members),
    "required": (_OBJECT, _has_required),
    **dict.fromkeys(
        (
            "propertyNames",
            "dependencies",
            "dependentRequired",
            "dependentSchemas",
            "unevaluatedProperties",
        ),
        (_OBJECT, _unknown),
    ),
}
# Keyword -> the types that it shows in a schema that states none
_KINDS_OF: Mapping[str, tuple[str, ...]] = {
    **{key: kinds for key, (kinds, _) in _CHECKS.items() if key != "format"},
    **dict.fromkeys(("contentEncoding", "contentMediaType", "contentSchema"), _STRING),
}
