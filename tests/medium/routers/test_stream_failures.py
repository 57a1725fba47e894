"""A stream that fails after its first byte, for each kind of error."""

import json
from typing import Any

import pytest

from openai_frontend import errors
from openai_frontend.generation import CompletionDelta
from openai_frontend.serving.error_reply import reply_for

FAILURES = [
    errors.InvalidRequest("the engine refuses it", param="prompt"),
    errors.ContextLengthExceeded("too long"),
    errors.ModelNotFound("it has been unloaded", param="model"),
    errors.ModelUnavailable("the engine died"),
    errors.ServerOverloaded("full"),
    errors.InferenceFailed("internals"),
    ValueError("internals"),
]
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ("/v1/completions", {"prompt": "hi"}),
    ("/v1/completions", {"prompt": "hi", "n": 2, "stream_options": {"include_usage": True}}),
]


@pytest.mark.parametrize(("path", "fields"), REQUESTS)
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
async def test_failed_stream_ends_with_the_error_envelope(world, failure, path, fields):
    """The same as in an error response. Nothing follows it."""
    world.model([[CompletionDelta("a")]], failure=failure)

    response = await world.client.post(path, json={"model": "fake", "stream": True, **fields})

    *chunks, last, end = response.text.split("\n\n")
    assert (response.status_code, end) == (200, "")
    assert json.loads(last.removeprefix("data: ")) == json.loads(reply_for(failure).body)
    choices = [choice for each in chunks for choice in json.loads(each[6:])["choices"]]
    assert {choice["finish_reason"] for choice in choices} == {None}
    assert "internals" not in response.text
