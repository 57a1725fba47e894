from typing import Any

import openai.types.chat
import pytest

from openai_frontend.errors import ContextLengthExceeded, InvalidRequest
from openai_frontend.serving.admission import Admission
from openai_frontend.serving.answer import Answer
from openai_frontend.serving.chat import ChatCompletions, complete
from openai_frontend.serving.fields import FieldPolicy
from openai_frontend.serving.limits import Limits
from schemas.chat_completions import ChatCompletionRequest
from tests.serving.fake_model import FakeModel

CHAT = ChatCompletions(Limits(max_n=8, max_messages=4), FieldPolicy("reject"), Admission(99))


async def prepare(model: FakeModel, **fields: Any) -> Answer:
    fields = {"messages": [{"role": "user", "content": "hello"}], **fields}
    request = ChatCompletionRequest.model_validate({"model": "fake", **fields})
    return await CHAT.prepare(request, model)  # type: ignore[arg-type]


async def test_prompt():
    """The rendered conversation goes to the model as text and as token ids."""

    answer = await prepare(FakeModel())

    [request] = answer.requests
    assert ("hello", [ord(letter) for letter in "hello"]) == (
        request.prompt,
        request.prompt_token_ids,
    )


MAX_TOKENS = [
    ({}, 95),
    ({"max_tokens": 10}, 10),
    ({"max_completion_tokens": 20}, 20),
    ({"max_tokens": 10, "max_completion_tokens": 20}, 20),
]


@pytest.mark.parametrize(("fields", "expected"), MAX_TOKENS)
async def test_max_tokens(fields, expected):
    """max_completion_tokens wins; without either field the answer may fill the context."""

    answer = await prepare(FakeModel(max_model_len=100), **fields)

    assert expected == answer.requests[0].sampling_params.max_tokens


async def test_max_tokens_of_a_model_without_known_context():
    """Where the context is not known, the model itself ends the answer."""

    answer = await prepare(FakeModel())

    assert answer.requests[0].sampling_params.max_tokens is None


async def test_too_long():
    """A conversation that does not fit is refused before anything is generated."""
    model = FakeModel(max_model_len=5)

    with pytest.raises(ContextLengthExceeded) as refused:
        await prepare(model)

    assert refused.value.param == "messages"
    assert model.requests == []


async def test_choices():
    """n choices are n requests that differ in id and seed alone."""

    answer = await prepare(FakeModel(), n=3, seed=7, temperature=0.5)

    assert len({request.request_id for request in answer.requests}) == 3
    assert [request.sampling_params.seed for request in answer.requests] == [7, 8, 9]
    assert {0.5} == {request.sampling_params.temperature for request in answer.requests}


async def test_ids_are_new_for_each_answer():
    """Engines refuse an id that they know already."""
    first, second = await prepare(FakeModel()), await prepare(FakeModel())

    assert first.id.startswith("chatcmpl-")
    assert first.requests[0].request_id != second.requests[0].request_id


async def test_template_options():
    """What templates may be told, they are told."""
    model = FakeModel()

    await prepare(
        model,
        add_generation_prompt=False,
        reasoning_effort="low",
        chat_template_kwargs={"enable_thinking": False},
    )

    [(_, options)] = model.rendered
    assert options == {
        "add_generation_prompt": False,
        "template_kwargs": {"enable_thinking": False, "reasoning_effort": "low"},
    }


REFUSED = [
    ({"n": 9}, "n"),
    ({"messages": [{"role": "user", "content": "hi"}] * 5}, "messages"),
    ({"tools": [{}]}, "tools"),
    ({"nonsense": 1}, "nonsense"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"stream_options": {}}, "stream_options"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
async def test_refused(fields, param):
    """What cannot be honoured is refused before the prompt is built."""
    model = FakeModel()

    with pytest.raises(InvalidRequest) as refused:
        await prepare(model, **fields)

    assert param == refused.value.param
    assert model.rendered == []


async def test_whole_answer():
    """A whole answer has every choice, its reason, and the counts; openai-python reads it."""
    answer = await prepare(FakeModel(), n=2)

    completion = await complete(answer)

    read = openai.types.chat.ChatCompletion.model_validate_json(completion.model_dump_json())
    assert [
        (choice.index, choice.message.content, choice.finish_reason) for choice in read.choices
    ] == [(0, "Hello", "stop"), (1, "Hello", "stop")]
    assert read.usage is not None
    assert (
        read.usage.prompt_tokens,
        read.usage.completion_tokens,
        read.usage.total_tokens,
    ) == (3, 4, 7)
    assert (answer.id, "fake", "chat.completion") == (read.id, read.model, read.object)
