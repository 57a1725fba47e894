"""Answers that the engine's grammar backends allow, at random: each is complete and valid."""

import json
from typing import Any

import jsonschema
import pytest

from tests.vllm.grammar_walk import walker

pytestmark = pytest.mark.engine


def given(**constraint: Any) -> Any:
    from vllm.sampling_params import StructuredOutputsParams

    return StructuredOutputsParams(**constraint)


def of(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


BOUNDED = [
    of(n={"type": "integer", "multipleOf": 2, "maximum": 10**6, "minimum": 0}),
    of(a={"type": "string", "pattern": "^[a-z-]+$", "maxLength": 39}),
    of(a={"type": "string", "format": "date", "pattern": r"^\d{4}-\d\d-\d\d$"}, b={"enum": [1, 2]}),
    of(a={"allOf": [{"type": "string", "pattern": "^a"}, {"pattern": "b$"}], "maxLength": 9}),
    {**of(a={"enum": [1]}, b={"enum": [2]}), "required": [], "anyOf": [{"required": ["b"]}]},
    of(a={"type": "array", "items": {"multipleOf": 3}, "maxItems": 3}),
]


@pytest.mark.parametrize("schema", BOUNDED, ids=str)
def test_llguidances_answers_have_at_most_one_space_between_parts(schema):
    """A model that has started with white space has nowhere to go but on with the answer."""
    walk = walker()
    grammar = walk.grammar(given(json={**schema, "x-guidance": {"whitespace_flexible": True}}))

    for seed in range(20):
        text = walk.walk(grammar, seed)
        jsonschema.validate(json.loads(text), schema)
        spaced, compact = (
            json.dumps(json.loads(text), ensure_ascii=False, separators=separators)
            for separators in ((", ", ": "), (",", ":"))
        )
        assert len(compact) <= len(text) <= len(spaced)
