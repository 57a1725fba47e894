"""What a chat's guard sees, and a guard that cannot be used."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from openai_frontend.errors import InvalidRequest, ModelUnavailable
from openai_frontend.generation import CompletionDelta, GenerationRequest, TokenCounts
from openai_frontend.serving.guard import ChatGuard, GuardModel, Guards, prompt_texts
from openai_frontend.serving.moderation import Moderator
from schemas.chat_completions import ChatCompletionRequest

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


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def chat(mode: str) -> ChatCompletionRequest:
    content = [{"type": "text", "text": "x"}, IMAGE]
    return ChatCompletionRequest.model_validate(
        {
            "model": "m",
            "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": content}],
            "documents": [{"title": "t", "text": "d"}],
            "moderation": {"model": "g", "policy": {"input": {"mode": mode}}},
        }
    )


def guard_of(request: ChatCompletionRequest) -> ChatGuard:
    guards = Guards(Moderator.__new__(Moderator), lambda *_: None)
    served: Any = None  # read only to compare it with the guard's model
    return guards.guard(request, GuardModel("g", None, ModelUnavailable("down")), served)


def test_a_guard_that_blocks_prompts_refuses_what_it_cannot_see() -> None:
    with pytest.raises(InvalidRequest, match="moderation") as raised:
        guard_of(chat("block"))

    assert raised.value.param == "messages[1].content[1]"
    assert guard_of(chat("score")).blocks_prompt is False


def test_documents_are_part_of_the_prompt() -> None:
    assert prompt_texts(chat("score")) == ["t", "d", "s", "x"]


def test_parts_of_a_message_are_one_text() -> None:
    """A phrase that is divided between parts would pass the guard, but not the template."""
    parts = [{"type": "text", "text": "I will"}, IMAGE, {"type": "refusal", "refusal": "kill you"}]
    asked = {"model": "m", "messages": [{"role": "assistant", "content": parts}]}

    assert prompt_texts(ChatCompletionRequest.model_validate(asked)) == ["I will\nkill you"]
