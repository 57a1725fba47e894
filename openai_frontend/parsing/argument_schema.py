"""The values that an argument may have, by the schema of its function's parameters."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from openai_frontend.parsing.schema_check import (
    ANY,
    EXACT,
    MAX_DEPTH,
    Mode,
    SchemaCheck,
    Verdict,
    every,
    list_of,
    mapping_of,
    some,
)
from openai_frontend.parsing.schema_document import REFERENCES, SchemaDocument

Types = frozenset[str]  # JSON Schema's type names; empty if anything is possible

# Subschemas to visit: a check has at most the first, the arguments of a call at most the second
# for their types and as many for their values. 1,000 take 2 ms.
_STEPS_OF_CHECK, _STEPS_OF_CALL = 512, 8 * 1024

# Read a schema so until it allows a type at all: some contradict themselves
_MODES = (Mode(hints=True, exclusive=True), EXACT, Mode(hints=False, exclusive=False))


class ArgumentSchema:
    """The parameters of one function, for the arguments of one call."""

    def __init__(self, schema: object) -> None:
        self._document = SchemaDocument(schema)
        self._types: dict[str, Types] = {}
        self._steps = {"types": _STEPS_OF_CALL, "values": _STEPS_OF_CALL}

    def types(self, name: str) -> Types:
        """The types that an argument may have."""
        if name not in self._types:
            self._types[name] = self._find_types(name)
        return self._types[name]

    def allows(self, name: str, value: object) -> bool:
        """False if the schema certainly forbids this value."""
        return self._verdict(name, value, EXACT, "values") is not False

    def _find_types(self, name: str) -> Types:
        for mode in _MODES:
            types = {
                kind
                for kind, value in ANY.items()
                if self._verdict(name, value, mode, "types") is not False
            }
            if types:
                return frozenset() if len(types) == len(ANY) else _without_integers(types)
        return frozenset()

    def _verdict(self, name: str, value: object, mode: Mode, budget: str) -> Verdict:
        steps = min(_STEPS_OF_CHECK, self._steps[budget])
        check = SchemaCheck(self._document, mode, steps)
        verdict = every(_Statements(check, name, value).of(self._document.root))
        self._steps[budget] -= steps - max(0, check.steps)
        return verdict


class _Statements:
    """Statements of an object's schema about one member."""

    def __init__(self, check: SchemaCheck, name: str, value: object) -> None:
        self._check = check
        self._name = name
        self._value = value
        self._seen: set[int] = set()

    def of(self, schema: object, depth: int = 0) -> list[Verdict]:
        """Empty if it says nothing.

        Alternatives that do not mention the member say nothing, although they allow anything.
        """
        if not isinstance(schema, Mapping) or id(schema) in self._seen or depth >= MAX_DEPTH:
            return []
        if not self._check.take_steps():
            return []
        self._seen.add(id(schema))
        nested = partial(self.of, depth=depth + 1)
        found = self._check.member(schema, self._name, self._value)
        for part in self._parts(schema):
            found += nested(part)
        for alternatives in _alternatives(schema):
            verdicts = [every(said) for said in map(nested, alternatives) if said]
            found += [some(verdicts)] if verdicts else []
        rest = schema.get("unevaluatedProperties")
        return found or ([self._check.verdict(rest, self._value)] if _is_schema(rest) else [])

    def _parts(self, schema: Mapping[str, Any]) -> list[object]:
        """Schemas of the same object that hold too, or under a condition that is not known."""
        target = self._check.document.target
        referred = [target(schema[key]) for key in REFERENCES if key in schema]
        dependent = [
            each
            for key in ("dependentSchemas", "dependencies")
            for each in mapping_of(schema, key).values()
        ]
        return [*referred, *list_of(schema, "allOf"), *dependent]


def argument_types(schema: Mapping[str, Any] | None, name: str) -> Types:
    """The types of one argument of a function."""
    return ArgumentSchema(schema).types(name)


def _alternatives(schema: Mapping[str, Any]) -> list[Sequence[object]]:
    """The schemas of which one holds."""
    branches = [schema.get("then"), schema.get("else")] if "if" in schema else []
    return [list_of(schema, "anyOf"), list_of(schema, "oneOf"), branches]


def _is_schema(value: object) -> bool:
    return isinstance(value, Mapping) and bool(value)


def _without_integers(types: set[str]) -> Types:
    """`number` includes integers."""
    return frozenset(types - {"integer"} if "number" in types else types)
