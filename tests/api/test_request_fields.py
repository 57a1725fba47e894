"""How request fields change an answer, shown on the real engine.

tests/vllm/test_sampling.py shows the effect of each sampling parameter, without HTTP.
"""

from typing import Any

import openai
import pytest

pytestmark = pytest.mark.engine

MODEL = "demo"
QUESTION: list[Any] = [{"role": "user", "content": "What is Triton?"}]
COUNT: list[Any] = [{"role": "user", "content": "Count to 7"}]
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0}


def chat(client: Any, extra: dict[str, Any] | None = None, **fields: Any) -> Any:
    return client.chat.completions.create(
        extra_body=extra, **{"messages": QUESTION, **GREEDY, **fields}
    )


def text(client: Any, extra: dict[str, Any] | None = None, **fields: Any) -> str:
    content: str = chat(client, extra, **fields).choices[0].message.content
    return content


@pytest.mark.honours("completions.best_of")
def test_best_of(client):
    """The most likely candidate is returned; usage counts all of them."""
    request: dict[str, Any] = {
        "model": MODEL, "prompt": "Triton", "max_tokens": 6, "temperature": 2.0, "seed": 11,
        "logprobs": 0, "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    everyone = client.completions.create(n=5, **request)
    means = [sum(each.logprobs.token_logprobs) / 6 for each in everyone.choices]

    best = client.completions.create(best_of=5, n=1, **request)

    assert best.choices[0].text == everyone.choices[means.index(max(means))].text
    assert best.usage.completion_tokens == 30


@pytest.mark.honours("chat.continue_final_message", "chat.echo")
def test_assistant_prefill(client):
    """The model continues an unfinished assistant message. With echo, the answer begins with it,
    streamed or not.
    """
    begun: dict[str, Any] = {
        "messages": [*COUNT, {"role": "assistant", "content": "1, 2, 3, 4"}],
        "max_tokens": 8,
    }
    extra = {"continue_final_message": True, "add_generation_prompt": False}

    rest = text(client, extra, **begun)
    whole = text(client, {**extra, "echo": True}, **begun)
    chunks = chat(client, {**extra, "echo": True}, **begun, stream=True)

    assert rest.startswith(", 5")
    assert whole == "1, 2, 3, 4" + rest
    assert whole == "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_stream_interval_of_plain_text(client):
    """The engine itself groups plain text; none is lost."""
    whole = chat(client, max_tokens=10)

    chunks = list(chat(client, {"stream_interval": 4}, stream=True, max_tokens=10))

    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]
    assert len(texts) <= 4
    assert "".join(texts) == whole.choices[0].message.content


@pytest.mark.honours("chat.cache_salt")
def test_cache_salt_separates_prefix_caches(client):
    """Two salts share no prefix cache; requests with one salt do."""
    messages = [{"role": "user", "content": "How do I set the port? " * 12}]

    def cached(salt: str) -> int:
        usage = chat(client, {"cache_salt": salt}, messages=messages, max_tokens=1).usage
        tokens: int = usage.prompt_tokens_details.cached_tokens
        return tokens

    assert [cached("a"), cached("b")] == [0, 0]
    assert cached("a") > 0


UNUSABLE = [
    ({"response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"type": "objec"}}}}, "response_format.json_schema.schema.type"),
    ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex"),
    ({"structured_outputs": {"grammar": "root ::= "}}, "structured_outputs.grammar"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), UNUSABLE)
def test_invalid_constraint_is_refused(client, fields, param):
    """An invalid schema, pattern or grammar is a 400; the next request works."""
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, fields)

    assert caught.value.param == param
    assert text(client, {"structured_outputs": {"choice": ["ok"]}}) == "ok"


@pytest.mark.honours("completions.prompt")
@pytest.mark.parametrize("prompt", ["", None])
def test_empty_prompt_begins_a_document(client, prompt):
    """Without a prompt the model begins from its start token, like OpenAI's models."""
    completion = client.completions.create(prompt=prompt, max_tokens=3, **GREEDY)

    assert completion.usage.prompt_tokens == 1


def test_chat_may_fill_the_context(client):
    """Without max_tokens, an answer that does not stop ends when the context is full."""
    answer = chat(client, {"ignore_eos": True})

    assert answer.usage.total_tokens == 2048
    assert answer.choices[0].finish_reason == "length"
