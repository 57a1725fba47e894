"""What chunks contain besides text, for both kinds of stream.

tests/stream_rules.py checks these streams too: it knows what each option requires.
"""

import json
from typing import Any

import pytest

from openai_frontend.config.settings import Settings
from openai_frontend.generation import CompletionDelta
from tests.fast.serving.fake_model import last

ENDPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    "completions": ("/v1/completions", {"prompt": "hi"}),
}


async def streamed(world: Any, prefix: str, *, forced: bool = False, **fields: Any) -> list[Any]:
    """The chunks of a stream of five tokens. With `forced`, the settings add the usage."""
    world.model(
        [[CompletionDelta(letter, token_ids=(1,))] for letter in "abcd"]
        + [[last("e", completion=5)]]
    )
    path, required = ENDPOINTS[prefix]
    body = {"model": "fake", "stream": True, **required, **fields}
    extensions = {"force_include_usage": forced}  # for tests/stream_rules.py
    response = await world.client.post(path, json=body, extensions=extensions)
    return [json.loads(part[6:]) for part in response.text.split("\n\n")[:-2]]


@pytest.mark.honours(
    "chat.stream_options",
    "chat.stream_options.include_usage",
    "completions.stream_options",
    "completions.stream_options.include_usage",
)
@pytest.mark.parametrize("prefix", ENDPOINTS)
async def test_include_usage_adds_a_last_chunk_with_the_usage(world, prefix):
    """`usage` is null on every chunk before."""
    *chunks, usage = await streamed(world, prefix, stream_options={"include_usage": True})

    assert {None} == {chunk["usage"] for chunk in chunks}
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 5)


@pytest.mark.honours(
    "chat.stream_options.include_obfuscation", "completions.stream_options.include_obfuscation"
)
@pytest.mark.parametrize("prefix", ENDPOINTS)
async def test_include_obfuscation_pads_each_chunk(world, prefix):
    chunks = await streamed(world, prefix, stream_options={"include_obfuscation": True})

    assert all(chunk["obfuscation"] for chunk in chunks)


@pytest.mark.honours(
    "chat.stream_options.continuous_usage_stats",
    "completions.stream_options.continuous_usage_stats",
)
@pytest.mark.parametrize("prefix", ENDPOINTS)
async def test_continuous_usage_stats_adds_usage_to_every_chunk(world, prefix):
    """The counts never fall."""
    options = {"include_usage": True, "continuous_usage_stats": True}

    chunks = await streamed(world, prefix, stream_options=options)

    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert chunks[0]["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize("include_usage", [False, None])
@pytest.mark.parametrize("prefix", ENDPOINTS)
async def test_continuous_usage_stats_needs_include_usage(world, prefix, include_usage):
    """As in vLLM."""
    options = {"include_usage": include_usage, "continuous_usage_stats": True}

    chunks = await streamed(world, prefix, stream_options=options)

    assert not any("usage" in chunk for chunk in chunks)


@pytest.mark.parametrize("fields", [{}, {"stream_options": {"include_usage": False}}])
@pytest.mark.parametrize("prefix", ENDPOINTS)
async def test_force_include_usage_overrides_the_request(world_of, prefix, fields):
    """Every stream ends with the usage."""
    world = await world_of(Settings(force_include_usage=True))

    *_, usage = await streamed(world, prefix, forced=True, **fields)

    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 5)


@pytest.mark.honours("chat.stream_interval", "completions.stream_interval")
@pytest.mark.parametrize("prefix", ENDPOINTS)
async def test_stream_interval_joins_tokens_that_have_ids(world, prefix):
    """No token is lost."""
    each = await streamed(world, prefix, return_token_ids=True)
    shared = await streamed(world, prefix, return_token_ids=True, stream_interval=3)

    assert len(shared) < len(each)
