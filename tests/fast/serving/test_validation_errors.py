"""Errors about fields that have one of several JSON types."""

from typing import Any

import orjson
import pytest

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.request.request_body import BodyReader
from schemas.decisions import DecisionRequest
from schemas.responses import ResponsesRequest
from schemas.sampling import RequestFields

TEXT_OR_ITEMS = "one of a string or an array of objects"
CHOICE = {"type": "choice", "instructions": "x", "choices": [{"value": 1}, {"value": 2}]}
CASES: list[tuple[type[RequestFields], dict[str, Any], str, str]] = [
    (ResponsesRequest, {"input": {}}, "input", f"{TEXT_OR_ITEMS}, but got an object"),
    (ResponsesRequest, {"input": 5}, "input", f"{TEXT_OR_ITEMS}, but got an integer"),
    (
        ResponsesRequest,
        {"input": [{"role": "user", "content": {}}]},
        "input[0].content",
        f"{TEXT_OR_ITEMS}, but got an object",
    ),
    (
        ResponsesRequest,
        {"input": "x", "tool_choice": []},
        "tool_choice",
        "one of a string or an object, but got an array",
    ),
    (
        DecisionRequest,
        {"input": "x", "questions": [CHOICE]},
        "questions[0].choices[0].value",
        "one of a string or a boolean, but got an integer",
    ),
]


@pytest.mark.parametrize(("schema", "body", "param", "difference"), CASES)
def test_error_names_the_field_and_its_types(schema, body, param, difference):
    with pytest.raises(InvalidRequest) as raised:
        BodyReader(schema).parse(orjson.dumps(body))

    assert (raised.value.param, raised.value.code) == (param, "invalid_type")
    assert raised.value.message == f"Invalid type for '{param}': expected {difference} instead."
