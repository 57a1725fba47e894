"""The whitespace of JSON answers, in vLLM's forms; no engine runs."""

import json
from typing import Any

import pytest

from openai_frontend.engines.vllm import whitespace

pytestmark = pytest.mark.engine

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def given(**constraint: Any) -> Any:
    from vllm.sampling_params import StructuredOutputsParams

    return StructuredOutputsParams(**constraint)


def bounded(**constraint: Any) -> Any:
    return whitespace.bounded(given(**constraint))


@pytest.mark.parametrize(
    ("constraint", "schema"),
    [
        ({"json": SCHEMA}, SCHEMA),
        ({"json": json.dumps(SCHEMA)}, SCHEMA),
        ({"json_object": True}, {"type": "object"}),
    ],
)
def test_schema(constraint, schema):
    """A schema goes to xgrammar as a structural tag that bounds its whitespace."""
    form = json.loads(bounded(**constraint).structural_tag)["format"]

    assert form == {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": 1}


@pytest.mark.parametrize(
    "constraint",
    [
        {"regex": "a"},
        {"choice": ["a"]},
        {"json": {"type": "integer", "multipleOf": 3}},
        {"json": "{bad"},
    ],
    ids=str,
)
def test_what_stays_as_it_is(constraint):
    """Other constraints, and schemas that xgrammar cannot take, go as they are."""
    assert bounded(**constraint) == given(**constraint)


def test_deep_schema():
    """A schema that is nested too deeply is refused before anything walks through it."""
    from vllm.exceptions import VLLMClientError

    schema: dict[str, Any] = {}
    for _ in range(2000):
        schema = {"properties": {"a": schema}}

    with pytest.raises(VLLMClientError, match="nested too deeply"):
        bounded(json=schema)


@pytest.mark.parametrize(
    ("config", "free"),
    [
        ({}, True),
        ({"backend": "xgrammar"}, True),
        ({"backend": "xgrammar", "disable_any_whitespace": True}, False),
        ({"backend": "guidance"}, False),
    ],
    ids=str,
)
def test_engines_where_whitespace_is_free(config, free):
    """What model.json says of whitespace, or of another backend, holds."""
    from vllm.config import StructuredOutputsConfig

    assert whitespace.is_free(StructuredOutputsConfig(**config)) == free
