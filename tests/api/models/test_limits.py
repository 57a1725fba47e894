"""Per-model limits set by the operator."""

import asyncio

from tests import mock_models
from tests.core.triton.waiting import until


def options(repository, name: str, text: str) -> None:
    (repository / name / "openai_frontend.yaml").write_text(text)


async def test_max_output_tokens(repository, live_gateway):
    """A larger value is rejected with its field; it is also the default."""
    mock_models.write_with_tokenizer(repository, "m", tokens=["a"])
    options(repository, "m", "max_output_tokens: 5")
    async with live_gateway() as gateway:
        chat = await gateway.chat("m")
        completion = await gateway.complete("m")
        refused = await gateway.chat("m", max_completion_tokens=6)
        also = await gateway.complete("m", max_tokens=6)

    answers = [response.json()["usage"]["completion_tokens"] for response in (chat, completion)]
    assert answers == [5, 5]
    errors = [response.json()["error"] for response in (refused, also)]
    assert [(error["param"], error["code"]) for error in errors] == [
        ("max_completion_tokens", "integer_above_max_value"),
        ("max_tokens", "integer_above_max_value"),
    ]


async def test_concurrent_requests(repository, live_gateway):
    """A request beyond the limit is rejected; other models are unaffected."""
    for name in ("small", "other"):
        mock_models.write_with_tokenizer(
            repository, name, tokens=["a"], tokens_per_second=50, answer_tokens=20
        )
    options(repository, "small", "max_concurrent_requests: 1\nmax_queue_size: 0")
    async with live_gateway() as gateway:
        first = asyncio.create_task(gateway.complete("small", max_tokens=20))
        await until(lambda: gateway.registry.use("small").running == 1)
        refused = await gateway.complete("small")
        other = await gateway.complete("other", max_tokens=1)

        assert (refused.status_code, other.status_code) == (503, 200)
        assert refused.json()["error"]["code"] == "queue_full"
        assert (await first).status_code == 200
        assert (await gateway.complete("small", max_tokens=1)).status_code == 200
