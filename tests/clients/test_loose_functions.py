"""Functions that are not strict, with schemas of clients that no grammar can express."""

import asyncio
from typing import Any

import openai
import pytest

pytestmark = pytest.mark.engine

PARAMETERS: dict[str, dict[str, Any]] = {
    "pattern with a lookahead": {"type": "string", "pattern": r"^(?!\.)(?=.*@)[a-z.@]+$"},
    "pattern and format": {"type": "string", "format": "email", "pattern": "@", "maxLength": 9},
    "Unicode class": {"type": "string", "pattern": r"^[\p{L}\p{N}_. ()-]+$"},
    "long count": {"type": "string", "pattern": "^[a-z]{1,300}$"},
    "tuple of draft 7": {"type": "array", "items": [{"type": "integer"}, {"type": "string"}]},
    "bound of draft 4": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
    "enum with a length": {"type": "string", "enum": ["asc", "desc"], "minLength": 1},
    "unknown type": {"type": "file"},
    "misplaced required": {"type": "string", "required": True},
    "reference elsewhere": {"$ref": "https://example.com/schema.json"},
    "two in allOf": {"allOf": [{"minimum": 1}, {"maximum": 5}]},
    "nothing": {"not": {}},
}  # fmt: skip
STRICT = {
    "name": "strict",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["n"],
        "additionalProperties": False,
    },
}


def tool(function: dict[str, Any]) -> Any:
    return {"type": "function", "function": function}


def places(function: dict[str, Any]) -> list[dict[str, Any]]:
    """The ways of a request to offer a function."""
    tools = [tool(function), tool(STRICT)]
    name = function["name"]
    return [
        {"tools": tools[:1]},
        {"tools": tools[:1], "parallel_tool_calls": False},
        {"tools": tools},
        {"tools": tools[:1], "response_format": {"type": "json_object"}},
        {"tools": tools, "tool_choice": "required"},
        {"tools": tools, "tool_choice": {"type": "function", "function": {"name": name}}},
        {"functions": [function]},
        {"functions": [function], "function_call": {"name": name}},
    ]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_no_schema_of_a_function_that_is_not_strict_is_refused(url: str, stream: bool):
    """In no place of a request: what the engine cannot enforce is dropped."""
    asked = [
        place
        for schema in PARAMETERS.values()
        for place in places({
            "name": "loose",
            "parameters": {"type": "object", "properties": {"a": schema}, "required": ["a"]},
        })
    ]  # fmt: skip
    async with openai.AsyncOpenAI(
        base_url=url, api_key="none", max_retries=0, timeout=600
    ) as client:

        async def answer(place: dict[str, Any]) -> str:
            try:
                reply = await client.chat.completions.create(
                    model="demo",
                    messages=[{"role": "user", "content": "What is Triton?"}],
                    max_tokens=4,
                    stream=stream,
                    **place,
                )
                if stream:
                    async for _ in reply:
                        pass
            except openai.APIError as error:
                return f"{place}: {error}"
            return ""

        problems = await asyncio.gather(*map(answer, asked))

    assert list(filter(None, problems)) == []


@pytest.mark.slow
async def test_refused_strict_schema_is_named_with_its_path(url: str):
    """Among other tools, the error names the tool and the property."""
    bad = {**STRICT, "name": "bad", "parameters": {
        "type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"},
                                               "uniqueItems": True}},
    }}  # fmt: skip
    async with openai.AsyncOpenAI(
        base_url=url, api_key="none", max_retries=0, timeout=600
    ) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(
                model="demo",
                messages=[{"role": "user", "content": "What is Triton?"}],
                tools=[tool(STRICT), tool(bad)],
            )

    assert refused.value.param == "tools[1].function.parameters.properties.a"
    assert "'uniqueItems'" in refused.value.message
