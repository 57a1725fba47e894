"""How request fields change an answer, shown on the real engine."""

import json
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


def first_ids(client: Any) -> list[int]:
    ids: list[int] = chat(client, {"return_token_ids": True}, max_tokens=4).choices[0].token_ids
    return ids


@pytest.mark.honours("chat.logit_bias", "completions.logit_bias")
def test_logit_bias_forbids_a_token(client):
    """A bias of -100 excludes the most likely token, in chat and completions."""
    token = str(first_ids(client)[0])

    unbiased, biased = (
        text(client, max_tokens=1),
        text(client, max_tokens=1, logit_bias={token: -100}),
    )

    completion: dict[str, Any] = {"prompt": "Triton is", "max_tokens": 1, **GREEDY}
    plain = client.completions.create(**completion, extra_body={"return_token_ids": True})
    [likeliest] = plain.choices[0].token_ids
    other = client.completions.create(**completion, logit_bias={str(likeliest): -100})
    assert unbiased != biased
    assert plain.choices[0].text != other.choices[0].text


def test_logit_bias_forces_a_token(client):
    """A bias of 100 forces an unlikely token."""
    token = first_ids(client)[2]

    answer = chat(client, {"return_token_ids": True}, max_tokens=3, logit_bias={str(token): 100})

    assert answer.choices[0].token_ids == [token] * 3


@pytest.mark.parametrize("stream", [False, True])
def test_neutral_length_penalty(client, stream):
    """vLLM supports `length_penalty` in beam searches only; its default value is accepted."""
    neutral = {"extra_body": {"length_penalty": 1.0}, "max_tokens": 1, "stream": stream}

    chatted = client.chat.completions.create(messages=QUESTION, **GREEDY, **neutral)
    completed = client.completions.create(prompt="Triton is", **GREEDY, **neutral)

    answers = [next(iter(answer)) if stream else answer for answer in (chatted, completed)]
    assert all(answer.choices for answer in answers)


@pytest.mark.honours("chat.bad_words", "chat.allowed_token_ids")
def test_bad_words_and_allowed_token_ids(client):
    """Bad words are excluded; with allowed token ids, no other token appears."""
    allowed = first_ids(client)

    without = text(client, {"bad_words": ["Triton"]}, max_tokens=20)
    within = chat(
        client,
        {"allowed_token_ids": allowed, "return_token_ids": True},
        max_tokens=20,
        temperature=2,
    )

    assert "Triton" not in without
    assert set(within.choices[0].token_ids) <= set(allowed)


@pytest.mark.honours("chat.include_stop_str_in_output", "chat.stop_token_ids")
def test_stop_tokens_and_included_stop_strings(client):
    """The stop string can stay in the text; a stop token ends the answer."""
    kept = text(client, {"include_stop_str_in_output": True}, messages=COUNT, stop=["5"])
    ids = first_ids(client)
    stopped = chat(client, {"stop_token_ids": [ids[2]]})

    assert kept.endswith("5")
    assert (stopped.usage.completion_tokens, stopped.choices[0].finish_reason) == (3, "stop")


@pytest.mark.honours("chat.skip_special_tokens")
def test_special_tokens_can_be_shown(client):
    """With skip_special_tokens false, the answer contains the tokens that delimit messages."""
    shown = text(client, {"skip_special_tokens": False, "ignore_eos": True}, max_tokens=120)
    hidden = text(client, {"ignore_eos": True}, max_tokens=120)

    assert "<|" in shown
    assert "<|" not in hidden


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


@pytest.mark.honours("chat.continue_final_message")
def test_assistant_prefill(client):
    """The model continues an unfinished assistant message."""
    begun = [*COUNT, {"role": "assistant", "content": "1, 2, 3, 4"}]

    rest = text(
        client,
        {"continue_final_message": True, "add_generation_prompt": False},
        messages=begun,
        max_tokens=8,
    )

    assert rest.startswith(", 5")


@pytest.mark.honours("chat.echo")
def test_echo_of_a_prefill(client):
    """With echo, the answer begins with the prefill, streamed or not."""
    begun = [*COUNT, {"role": "assistant", "content": "1, 2, 3, 4"}]
    extra = {"continue_final_message": True, "echo": True}

    whole = text(client, extra, messages=begun, max_tokens=8)
    chunks = chat(client, extra, messages=begun, max_tokens=8, stream=True)

    assert whole.startswith("1, 2, 3, 4, 5")
    assert whole == "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


@pytest.mark.honours("chat.return_token_ids", "chat.stream_interval")
def test_stream_interval(client):
    """Four tokens share an event; the first token is sent immediately."""
    request: dict[str, Any] = {"max_tokens": 10, "extra": {"return_token_ids": True}}
    whole = chat(client, **request)

    request["extra"]["stream_interval"] = 4
    chunks = list(chat(client, stream=True, **request))

    ids = [chunk.choices[0].token_ids for chunk in chunks if hasattr(chunk.choices[0], "token_ids")]
    assert [len(each) for each in ids] == [1, 4, 4, 1]
    assert [token for each in ids for token in each] == whole.choices[0].token_ids
    assert chunks[0].prompt_token_ids == whole.prompt_token_ids


def test_stream_interval_of_plain_text(client):
    """The engine itself groups plain text; none is lost."""
    whole = chat(client, max_tokens=10)

    chunks = list(chat(client, {"stream_interval": 4}, stream=True, max_tokens=10))

    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]
    assert len(texts) <= 4
    assert "".join(texts) == whole.choices[0].message.content


@pytest.mark.honours("chat.stream_options.include_obfuscation")
def test_obfuscation(client):
    """include_obfuscation pads text chunks to a few sizes; without it they are unpadded."""

    def paddings(include: bool) -> list[str | None]:
        chunks = chat(
            client, stream=True, max_tokens=20, stream_options={"include_obfuscation": include}
        )
        return [
            getattr(chunk, "obfuscation", None)
            for chunk in chunks
            if chunk.choices[0].delta.content
        ]

    assert all(paddings(True))
    assert not any(paddings(False))


@pytest.mark.honours("chat.stream_options.continuous_usage_stats")
def test_usage_on_every_chunk(client):
    """The counts so far grow by the tokens of each chunk."""
    options = {"include_usage": True, "continuous_usage_stats": True}

    chunks = [*chat(client, stream=True, max_tokens=6, stream_options=options)]

    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert (counts[0], counts[-1]) == (0, 6)
    assert counts == sorted(counts)
    assert len({chunk.usage.prompt_tokens for chunk in chunks}) == 1


@pytest.mark.honours("chat.service_tier", "chat.metadata")
@pytest.mark.accepts(
    "chat.store", "chat.user", "chat.safety_identifier", "chat.prompt_cache_key", "chat.prediction"
)
def test_echoed_and_ignored_fields(client):
    """Tier and metadata are echoed; none of these fields changes a greedy answer."""
    fields: dict[str, Any] = {
        "service_tier": "flex",
        "metadata": {"team": "a"},
        "store": True,
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "prediction": {"type": "content", "content": "Triton"},
        "parallel_tool_calls": False,
        "modalities": ["text"],
    }

    plain, told = chat(client), chat(client, **fields)

    assert plain.choices[0].message.content == told.choices[0].message.content
    assert (told.service_tier, told.metadata) == ("default", {"team": "a"})
    assert (plain.service_tier, told.system_fingerprint) == (None, plain.system_fingerprint)


@pytest.mark.honours("chat.truncate_prompt_tokens", "completions.truncate_prompt_tokens")
def test_truncated_prompts(client):
    """A prompt longer than the context is cut at its start, and answered."""
    long = "word " * 5000

    cut: Any = client.completions.create(
        prompt=long, max_tokens=4, extra_body={"truncate_prompt_tokens": -1}, **GREEDY
    )
    ten = chat(
        client,
        {"truncate_prompt_tokens": 10},
        messages=[{"role": "user", "content": long}],
        max_tokens=4,
    )

    assert (cut.usage.prompt_tokens, ten.usage.prompt_tokens) == (2044, 10)


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


@pytest.mark.honours("chat.response_format", "chat.response_format.json_schema")
@pytest.mark.parametrize("temperature", [0, 1.5])
@pytest.mark.parametrize("stream", [False, True])
def test_json_schema(client, temperature, stream):
    """The answer is JSON that matches the schema, at any temperature."""
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}, "warm": {"type": "boolean"}},
        "required": ["city", "warm"],
        "additionalProperties": False,
    }
    answer = chat(
        client,
        temperature=temperature,
        stream=stream,
        seed=7,
        max_tokens=100,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "weather", "schema": schema, "strict": True},
        },
    )

    if stream:
        content = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    else:
        content = answer.choices[0].message.content
    parsed = json.loads(content)
    assert parsed["city"] in ("Rome", "Oslo")
    assert isinstance(parsed["warm"], bool)


@pytest.mark.honours("chat.response_format.json_object")
def test_json_object(client):
    """Any JSON object, from its first character."""
    content = text(
        client, response_format={"type": "json_object"}, max_tokens=30, temperature=1, seed=1
    )

    assert content.startswith("{")


@pytest.mark.honours("chat.structured_outputs", "completions.structured_outputs")
def test_structured_outputs(client):
    """vLLM's own constraints: one of several texts, or a regular expression."""
    choice = text(client, {"structured_outputs": {"choice": ["yes", "no"]}})
    matched = client.completions.create(
        prompt="Triton",
        max_tokens=20,
        extra_body={"structured_outputs": {"regex": "[0-9]{4}"}},
        **GREEDY,
    )

    assert choice in ("yes", "no")
    assert len(matched.choices[0].text) == 4
    assert matched.choices[0].text.isdigit()


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


@pytest.mark.honours("chat.n")
def test_maximum_number_of_choices(client):
    """128 choices of one request, in order."""
    answer = chat(client, n=128, max_tokens=2, temperature=2, seed=1)

    assert [choice.index for choice in answer.choices] == list(range(128))
    assert answer.usage.completion_tokens <= 256
