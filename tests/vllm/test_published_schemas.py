"""The engines' grammars for each schema of JSON Schema's published test suite."""

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from openai_frontend.engines.vllm.grammars.preprocess import GrammarSpec, prepare
from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.constraints.json_schema import check_schema
from tests.vllm.published_schemas import Case, cases
from tests.vllm.random_answers import LLGuidanceAnswers, PossibleAnswers, RandomAnswers

pytestmark = pytest.mark.engine

ANSWERS = 4  # random answers per schema


def error_of(check: Callable[[], Any], kind: type[Exception]) -> Any:
    try:
        check()
    except kind as error:
        return error
    return None


def grammar(schema: Any) -> PossibleAnswers | None:
    """Return the grammar; None if the schema is refused with its path."""
    place = "tools[0].function.parameters"
    refused = error_of(lambda: check_schema(schema, place), InvalidRequest)
    if refused is not None:
        assert str(refused.param).startswith(place)
        return None
    refused = error_of(lambda: prepare(GrammarSpec("json", json.dumps(schema))), ValueError)
    if refused is not None:
        assert str(refused).startswith("structured_outputs: ")
        return None
    form = prepare(GrammarSpec("json", json.dumps(schema)))
    return (
        RandomAnswers(form.text) if form.kind == "structural_tag" else LLGuidanceAnswers(form.text)
    )


def texts(value: Any) -> list[str]:
    """Return the texts that a model may write. Some cases are about the notation of a number."""
    loose = json.dumps(value, ensure_ascii=False)
    return [loose, json.dumps(value, ensure_ascii=False, separators=(",", ":"))]


def test_each_schema_is_enforced_or_refused():
    """A grammar allows only values that match its schema: none of the suite's invalid values, and
    every random answer validates. Other schemas are refused with the path.
    """
    held = {case.name: (case, made) for case in cases() if (made := grammar(case.schema))}

    assert len(held) > 170
    for case, made in held.values():
        for value in case.invalid:
            assert not any(map(made.takes, texts(value))), (case.name, value)
        if isinstance(made, RandomAnswers):
            check_random_answers(case, made)


def check_random_answers(case: Case, made: RandomAnswers) -> None:
    validator = jsonschema.Draft202012Validator(case.schema)
    for seed in range(ANSWERS):
        text = made.make(seed)
        assert validator.is_valid(json.loads(text)), (case.name, text)


def test_most_valid_values_are_allowed():
    """A grammar may be narrower than its schema (`docs/structured-output.md`), but only in two
    ways: no other types next to a keyword for one type, and no undeclared properties.
    """
    allowed = [
        (case.name, any(map(made.takes, texts(value))))
        for case in cases()
        if not case.name.startswith("format: ") and (made := grammar(case.schema))
        for value in case.valid
    ]

    assert len(allowed) > 300
    assert sum(taken for _, taken in allowed) > 250
