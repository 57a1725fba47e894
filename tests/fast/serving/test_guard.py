"""A chat's guard that cannot be used."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from openai_frontend.errors import ModelUnavailable
from openai_frontend.generation import CompletionDelta, GenerationRequest, TokenCounts
from openai_frontend.serving.guard import ChatGuard, GuardModel
from openai_frontend.serving.moderation import Moderator

SENTENCES = ["One is here. ", "Two is there. ", "Three is away. "]


async def bursts() -> AsyncGenerator[list[CompletionDelta], None]:
    for text in SENTENCES:
        yield [CompletionDelta(text, [1])]
    yield [CompletionDelta(finish_reason="stop", counts=TokenCounts(1, 3, 0))]


@pytest.mark.parametrize("choices", [1, 2])
async def test_one_warning_says_that_a_chat_continues_without_its_guard(
    caplog: pytest.LogCaptureFixture, choices: int
) -> None:
    """Not one for each sentence or choice. The metrics count all checks."""
    failed: list[str] = []
    guard = ChatGuard(
        GuardModel("g", None, ModelUnavailable("It is down."), fails_open=True),
        Moderator.__new__(Moderator),  # never called without a model
        lambda model, stage, result: failed.append(stage),
        input_mode="block",
        output_mode="block",
    )
    request = GenerationRequest.__new__(GenerationRequest)  # only a blocked choice reads it

    await guard.check_prompt(["Hello."])
    shown: list[Any] = []
    for _ in range(choices):
        async for burst in guard.read(bursts(), request):
            shown += [each.text for each in burst]

    assert "".join(shown) == "".join(SENTENCES) * choices
    assert failed.count("output") >= 3 * choices
    assert caplog.messages == [
        "moderation failed; model=g stage=output request=continues: It is down."
    ]
