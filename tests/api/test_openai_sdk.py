"""OpenAI's client with the gateway, the real core, the real engine and the demo model."""

import asyncio
from typing import Any

import openai
import pytest

pytestmark = pytest.mark.engine

MODEL = "demo"
QUESTION: list[Any] = [{"role": "user", "content": "What is Triton?"}]
COUNT: list[Any] = [{"role": "user", "content": "Count to 7"}]
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0}


@pytest.mark.honours("chat.messages", "chat.messages.user.content", "chat.temperature")
def test_chat_answers_and_stops(client):
    """The demo model knows what Triton is, and ends its answer with its stop token."""
    completion = client.chat.completions.create(messages=QUESTION, **GREEDY)

    choice = completion.choices[0]
    assert ("Triton" in choice.message.content, choice.finish_reason) == (True, "stop")


def test_usage_counts_add_up(client):
    """prompt_tokens and completion_tokens come from the engine and sum to total_tokens."""
    usage = client.chat.completions.create(messages=QUESTION, max_tokens=5, **GREEDY).usage

    assert (usage.completion_tokens, usage.total_tokens) == (5, usage.prompt_tokens + 5)


def test_stream_equals_the_complete_answer(client):
    """The joined deltas of a greedy stream equal the greedy answer."""
    whole = client.chat.completions.create(messages=QUESTION, **GREEDY)

    chunks = list(client.chat.completions.create(messages=QUESTION, stream=True, **GREEDY))

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content


@pytest.mark.honours("chat.stream", "chat.stream_options", "chat.stream_options.include_usage")
def test_stream_order(client):
    """One role first, finish_reason on the last choice chunk only, requested usage last."""
    chunks = list(
        client.chat.completions.create(
            messages=QUESTION, stream=True, stream_options={"include_usage": True}, **GREEDY
        )
    )

    roles = [chunk.choices[0].delta.role for chunk in chunks if chunk.choices]
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    usages = [chunk.usage is not None for chunk in chunks]
    assert roles == ["assistant"] + [None] * (len(roles) - 1)
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert usages == [False] * (len(usages) - 1) + [True]
    assert chunks[-1].choices == []


def test_stream_has_no_usage_chunk_by_default(client):
    """Every chunk of a plain stream has a choice: genai-perf indexes choices[0]."""
    chunks = client.chat.completions.create(messages=QUESTION, stream=True, **GREEDY)

    assert all(len(chunk.choices) == 1 for chunk in chunks)


def test_stream_helper_accumulates_the_message(client):
    """openai-python's .stream() helper builds the same message as a plain call."""
    whole = client.chat.completions.create(messages=QUESTION, **GREEDY)

    with client.chat.completions.stream(messages=QUESTION, **GREEDY) as stream:
        message = stream.get_final_completion().choices[0].message

    assert (message.role, message.content) == ("assistant", whole.choices[0].message.content)


@pytest.mark.honours("chat.n")
def test_choices_differ_by_seed(client):
    """n=4 gives four choices in order, not all equal at a high temperature."""
    completion = client.chat.completions.create(
        model=MODEL, messages=QUESTION, n=4, temperature=2.0, seed=1, max_tokens=20
    )

    texts = [choice.message.content for choice in completion.choices]
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
    assert len(set(texts)) > 1


def test_streamed_choices_first_appear_in_ascending_order(client):
    """Indexes first appear as 0, 1, 2: the SDK's accumulator uses them as list indexes."""
    chunks = client.chat.completions.create(messages=QUESTION, n=3, stream=True, **GREEDY)

    assert list(dict.fromkeys(chunk.choices[0].index for chunk in chunks)) == [0, 1, 2]


@pytest.mark.honours("chat.seed")
def test_seed_reproduces_the_answer(client):
    """The same seed at temperature 2 gives the same text twice."""
    request: dict[str, Any] = {"model": MODEL, "temperature": 2.0, "seed": 42, "max_tokens": 30}

    answers = [client.chat.completions.create(messages=QUESTION, **request) for _ in range(2)]

    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content


@pytest.mark.honours("chat.stop")
@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_is_not_in_the_answer(client, stream):
    """The text ends before the stop string, streamed or not, with finish_reason stop."""
    request: dict[str, Any] = {"messages": COUNT, "stop": ["5"], **GREEDY}

    if stream:
        chunks = list(client.chat.completions.create(stream=True, **request))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        choice = client.chat.completions.create(**request).choices[0]
        text, reason = choice.message.content, choice.finish_reason

    assert ("4" in text, "5" in text, reason) == (True, False, "stop")


@pytest.mark.honours("chat.max_tokens")
def test_max_tokens_has_finish_reason_length(client):
    completion = client.chat.completions.create(messages=QUESTION, max_tokens=2, **GREEDY)

    assert completion.choices[0].finish_reason == "length"


@pytest.mark.honours("chat.ignore_eos", "chat.min_tokens")
def test_ignore_eos_and_min_tokens_reach_the_engine(client):
    """vLLM's extensions work through extra_body."""
    completion = client.chat.completions.create(
        messages=QUESTION, max_tokens=150, extra_body={"ignore_eos": True}, **GREEDY
    )

    assert completion.usage.completion_tokens == 150


@pytest.mark.honours("completions.prompt", "completions.n")
def test_completions_of_several_prompts_are_ordered(client):
    """The choices of a list of prompts are prompt-major."""
    completion = client.completions.create(
        model=MODEL, prompt=["Triton is", "The gateway"], max_tokens=8, n=2, temperature=0
    )

    texts = [choice.text for choice in completion.choices]
    assert (len(texts), texts[0] == texts[1], texts[2] == texts[3]) == (4, True, True)


@pytest.mark.honours("models.list", "models.retrieve", "models.retrieve.model")
def test_models_are_listed_and_retrieved(client):
    """The demo model is listed with its context length and a description as a demo."""
    listed = {model.id: model for model in client.models.list()}

    model: Any = client.models.retrieve(MODEL)
    assert MODEL in listed
    assert (model.max_model_len, "demo" in model.description.lower()) == (2048, True)


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"messages": []}, "messages", None),
        ({"temperature": -1}, "temperature", None),
        ({"n": 0}, "n", None),
        ({"max_tokens": "many"}, "max_tokens", None),
        ({"max_tokens": 100_000}, None, "context_length_exceeded"),
        (
            {"messages": [{"role": "user", "content": "word " * 5000}]},
            None,
            "context_length_exceeded",
        ),
    ],
)
def test_bad_request_names_the_field(client, change, param, code):
    """The SDK raises BadRequestError with param, and with a code if OpenAI has one."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"messages": QUESTION, **GREEDY, **change})

    assert caught.value.param == (param or caught.value.param)
    assert caught.value.code == (code or caught.value.code)
    assert caught.value.type == "invalid_request_error"


@pytest.mark.honours("chat.model")
def test_unknown_model_is_not_found(client):
    """404 with OpenAI's code."""
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nobody", messages=QUESTION)

    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


async def test_64_concurrent_streams(async_client):
    """64 greedy streams of one question all give the same answer."""

    async def ask() -> str:
        chunks = await async_client.chat.completions.create(
            messages=QUESTION, stream=True, **GREEDY
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    answers = await asyncio.gather(*(ask() for _ in range(64)))

    assert len(set(answers)) == 1
    assert answers[0] != ""
    await async_client.close()
