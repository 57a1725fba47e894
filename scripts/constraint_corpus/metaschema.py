"""Random schemas that the drafts' own schemas allow: of any keyword, with any value."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from scripts.constraint_corpus.client_schemas import as_property

EXAMPLES = 150  # of each draft
_DRAFTS = {"4": jsonschema.Draft4Validator, "7": jsonschema.Draft7Validator}
# Their random values refer to nothing, or mean nothing.
_LEFT_OUT = frozenset(
    ("$ref", "$id", "id", "$schema", "$comment", "title", "description", "format")
)
_LEAVES = (
    {"type": "integer"},
    {"type": "string", "maxLength": 4},
    {"type": "null"},
    {"enum": ["a"]},
)
_NAMES = st.sampled_from(("a", "b", "type", 'é "', "^x", "")) | st.text(max_size=4)
_VALUES = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=5)


def random_schemas(at: int) -> Iterator[tuple[str, Any]]:
    """Names and schemas, the same for the same seed."""
    for draft, validator in _DRAFTS.items():
        for number, schema in enumerate(_examples(validator.META_SCHEMA, at)):
            yield f"draft {draft} {number}", as_property(schema)


def _examples(metaschema: Mapping[str, Any], at: int) -> list[Any]:
    found: dict[str, Any] = {}

    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @seed(at)
    @given(_schemas(metaschema, 2))
    def keep(schema: Any) -> None:
        found.setdefault(json.dumps(schema), schema)

    keep()
    return list(found.values())


def _schemas(root: Mapping[str, Any], depth: int) -> Any:
    """Schemas of up to `depth` levels with up to four keywords each."""
    if not depth:
        return st.sampled_from(_LEAVES)
    keywords = [
        st.tuples(st.just(name), _deferred(part, root, depth))
        for name, part in root["properties"].items()
        if name not in _LEFT_OUT
    ]
    return st.lists(st.one_of(keywords), max_size=4).map(dict)


def _deferred(part: Any, root: Mapping[str, Any], depth: int) -> st.SearchStrategy[Any]:
    return st.deferred(lambda: _values(part, root, depth))  # hypothesis refuses a partial


def _values(part: Any, root: Mapping[str, Any], depth: int) -> Any:
    """Values that the part of the metaschema allows."""
    reference = part.get("$ref") if isinstance(part, Mapping) else None
    if reference == "#":
        return _schemas(root, depth - 1)
    if reference is not None:
        return _values(root["definitions"][reference.rpartition("/")[2]], root, depth)
    for key in ("anyOf", "allOf"):
        if key in part if isinstance(part, Mapping) else False:
            return st.one_of([_values(each, root, depth) for each in part[key]])
    if not isinstance(part, Mapping) or not part.keys() & {"type", "enum"}:
        return _VALUES
    return st.sampled_from(part["enum"]) if "enum" in part else _typed(part, root, depth)


def _typed(part: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    items = part.get("items", {})
    kinds = {
        "string": lambda: _NAMES,
        "boolean": st.booleans,
        "integer": lambda: st.integers(part.get("minimum", -3), 8),
        "number": lambda: st.integers(0 if "exclusiveMinimum" in part else -9, 9).filter(bool),
        "array": lambda: st.lists(
            _values(items, root, depth), min_size=part.get("minItems", 0), max_size=3
        ),
        "object": lambda: st.dictionaries(
            _NAMES, _values(part.get("additionalProperties", {}), root, depth), max_size=3
        ),
    }
    return kinds[part["type"]]() if isinstance(part["type"], str) else _VALUES
