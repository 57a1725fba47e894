"""/v1/embeddings: the response, the limits of the request, errors and disconnects."""

import asyncio
from typing import Any

import httpx
import openai
import pytest

from tests.fast.serving.fake_pooling_model import FakePoolingModel
from tests.medium.routers.conftest import World, served


def pooling_model(world: World, **options: Any) -> FakePoolingModel:
    model = FakePoolingModel(**options)
    world.registry.models["fake"] = model
    return model


async def post(world: World, **fields: Any) -> httpx.Response:
    body = {"model": "fake", "input": "ab", **fields}
    return await world.client.post("/v1/embeddings", json=body)


@pytest.mark.parametrize("fields", [{}, {"encoding_format": "float"}])
async def test_openai_python_decodes_base64_and_floats(world, fields):
    """Base64 is its default."""
    pooling_model(world)

    async with (
        served(world) as (_, url),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client,
    ):
        answer = await client.embeddings.create(model="fake", input="ab", **fields)

    assert answer.data[0].embedding == [1, 1, 2]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (path + render, body)
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
            ("/v1/completions", {"prompt": "a"}),
        )
        for render in ("", "/render")
    ],
)
async def test_text_generation_rejects_an_embedding_model(world, path, body):
    """The error names `model`, with the code `unsupported_model`."""
    pooling_model(world)

    response = await world.client.post(path, json={"model": "fake", **body})

    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (
        400,
        "model",
        "unsupported_model",
    )


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"input": []}, "input", "empty_array"),
    ({"input": ["a", 1]}, "input[1]", "invalid_type"),
    ({"input": [1, "a"]}, "input[1]", "invalid_type"),
    ({"input": [[]]}, "input[0]", "empty_array"),
    ({"input": [[1], []]}, "input[1]", "empty_array"),
    ({"input": [[[1]]]}, "input[0][0]", "invalid_type"),
    ({"input": [-1]}, "input[0]", "integer_below_min_value"),
    ({"input": [2**31]}, "input[0]", "integer_above_max_value"),
    ({"input": [True]}, "input[0]", "invalid_type"),
    ({"input": [1.0]}, "input[0]", "invalid_type"),
    ({"input": [[1], "a"]}, "input[1]", "invalid_type"),
    ({"input": None}, "input", "missing_required_parameter"),
    ({"input": {"text": "a"}}, "input", "invalid_type"),
    ({"dimensions": 0}, "dimensions", "integer_below_min_value"),
    ({"dimensions": -1}, "dimensions", "integer_below_min_value"),
    ({"dimensions": 2**31}, "dimensions", "integer_above_max_value"),
    ({"dimensions": 2**63}, "dimensions", "integer_above_max_value"),
    ({"dimensions": "3"}, "dimensions", "invalid_type"),
    ({"dimensions": True}, "dimensions", "invalid_type"),
    ({"encoding_format": "hex"}, "encoding_format", "invalid_value"),
    ({"encoding_format": 1}, "encoding_format", "invalid_type"),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "integer_below_min_value"),
    ({"user": "x" * 513}, "user", "string_above_max_length"),
    ({"model": 1}, "model", "invalid_type"),
]


@pytest.mark.parametrize(("fields", "param", "code"), BAD, ids=lambda each: str(each)[:40])
async def test_invalid_input_is_a_400_that_names_the_field(world, fields, param, code):
    """Each limit exceeded by one. The model gets nothing."""
    model = pooling_model(world)

    response = await post(world, **fields)

    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, code)
    assert (error["type"], model.embedded) == ("invalid_request_error", [])


async def test_disconnect_ends_every_request_of_the_client(world):
    """One per input."""
    model = pooling_model(world, hanging=True)

    async with served(world) as (_, url), httpx.AsyncClient() as client:
        body = {"model": "fake", "input": ["a", "b", "c"]}
        request = asyncio.create_task(client.post(f"{url}/v1/embeddings", json=body))
        await model.begun.wait()
        request.cancel()
        await asyncio.wait([request])
        async with asyncio.timeout(30):
            await model.ended.wait()

    assert model.open == 0
