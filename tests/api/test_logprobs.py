"""Log probabilities, checked against each other and against the engine."""

import math
from typing import Any

import pytest

pytestmark = pytest.mark.engine

MODEL = "demo"
QUESTION: list[Any] = [{"role": "user", "content": "What is Triton?"}]
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0}


def chat_entries(client: Any, **fields: Any) -> list[Any]:
    completion = client.chat.completions.create(
        messages=QUESTION, logprobs=True, **{**GREEDY, **fields}
    )
    return list(completion.choices[0].logprobs.content)


@pytest.mark.honours("chat.logprobs", "chat.top_logprobs")
def test_greedy_token_is_the_most_likely(client):
    """Greedy sampling takes the first alternative, with the same log probability."""
    entries = chat_entries(client, top_logprobs=3, max_tokens=12)

    assert len(entries) == 12
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert (entry.token, entry.logprob) == (
            entry.top_logprobs[0].token,
            entry.top_logprobs[0].logprob,
        )
        assert [top.logprob for top in entry.top_logprobs] == sorted(
            (top.logprob for top in entry.top_logprobs), reverse=True
        )


@pytest.mark.honours("chat.top_logprobs")
def test_twenty_alternatives(client):
    """OpenAI's maximum of top_logprobs; the probabilities sum to at most 1."""
    [entry] = chat_entries(client, top_logprobs=20, max_tokens=1)

    assert len(entry.top_logprobs) == 20
    assert 0.5 < sum(math.exp(top.logprob) for top in entry.top_logprobs) <= 1.0001


def test_sampled_token_outside_the_top_alternatives(client):
    """At a high temperature, the token has its own log probability, not the most likely one's."""
    entries = chat_entries(client, temperature=2, seed=5, top_logprobs=1, max_tokens=60)

    unlikely = [entry for entry in entries if entry.token != entry.top_logprobs[0].token]
    assert unlikely
    assert all(entry.logprob <= entry.top_logprobs[0].logprob for entry in unlikely)


def test_joined_bytes_equal_the_text(client):
    """The tokens' bytes joined are the message, whatever the characters."""
    completion = client.chat.completions.create(
        messages=QUESTION, logprobs=True, temperature=2, seed=3, max_tokens=80, model=MODEL
    )

    [choice] = completion.choices
    raw = b"".join(bytes(entry.bytes) for entry in choice.logprobs.content)
    assert choice.message.content in raw.decode("utf-8", "replace")


def test_characters_split_over_tokens(client):
    """Each token of a character has its own bytes, which join to the character."""
    entries = chat_entries(
        client,
        max_tokens=40,
        extra_body={"structured_outputs": {"choice": ["日本✓"]}},
    )

    raw = b"".join(bytes(entry.bytes) for entry in entries if not entry.token.startswith("<|"))
    assert raw.decode() == "日本✓"
    assert any(len(entry.bytes) == 1 and entry.bytes[0] > 127 for entry in entries)


def test_streamed_and_complete_logprobs_are_equal(client):
    whole = chat_entries(client, top_logprobs=2, max_tokens=15)
    chunks = client.chat.completions.create(
        messages=QUESTION, logprobs=True, top_logprobs=2, max_tokens=15, stream=True, **GREEDY
    )

    streamed = [
        entry
        for chunk in chunks
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]

    assert [entry.token for entry in whole] == [entry.token for entry in streamed]
    for expected, got in zip(whole, streamed, strict=True):
        assert expected.logprob == pytest.approx(got.logprob, abs=1e-4)


@pytest.mark.honours("completions.logprobs")
def test_completion_logprobs(client):
    """Parallel lists whose tokens form the choice's text, with their offsets in it."""
    completion = client.completions.create(prompt="Triton is", logprobs=2, max_tokens=10, **GREEDY)

    [choice] = completion.choices
    told = choice.logprobs
    assert "".join(told.tokens) == choice.text
    for token, offset in zip(told.tokens, told.text_offset, strict=True):
        assert choice.text[offset : offset + len(token)] == token
    assert all(token in tops for token, tops in zip(told.tokens, told.top_logprobs, strict=True))


@pytest.mark.honours("completions.echo", "completions.max_tokens")
def test_loglikelihood_path_of_evaluation_harnesses(client):
    """echo, logprobs and max_tokens 0: the prompt's log probabilities, and no further token."""
    completion = client.completions.create(
        prompt="Triton is a server", echo=True, logprobs=1, max_tokens=0, **GREEDY
    )

    [choice] = completion.choices
    told = choice.logprobs
    assert (choice.text, choice.finish_reason) == ("Triton is a server", "length")
    assert "".join(told.tokens) == choice.text
    assert told.token_logprobs[0] is None
    assert all(logprob < 0 for logprob in told.token_logprobs[1:])
    assert (completion.usage.completion_tokens, completion.usage.prompt_tokens) == (
        0,
        len(told.tokens),
    )


def test_loglikelihood_of_token_ids(client):
    """The same path with a batch of token ids, as lm-eval sends it."""
    ids = (
        client.chat.completions.create(
            messages=QUESTION, max_tokens=8, extra_body={"return_token_ids": True}, **GREEDY
        )
        .choices[0]
        .token_ids
    )

    completion = client.completions.create(
        prompt=[ids, ids[:4]], echo=True, logprobs=1, max_tokens=0, **GREEDY
    )

    first, second = (choice.logprobs.token_logprobs for choice in completion.choices)
    assert (len(first), len(second)) == (8, 4)
    assert first[1:4] == pytest.approx(second[1:], abs=1e-3)


def test_prompt_and_answer_logprobs_agree(client):
    """The tokens of an answer have the same log probabilities if they are echoed as a prompt."""
    answer = client.completions.create(prompt="Triton is", logprobs=0, max_tokens=6, **GREEDY)
    [choice] = answer.choices

    echoed = client.completions.create(
        prompt="Triton is" + choice.text, echo=True, logprobs=0, max_tokens=0, **GREEDY
    ).choices[0]

    count = len(choice.logprobs.tokens)
    assert echoed.logprobs.tokens[-count:] == choice.logprobs.tokens
    assert echoed.logprobs.token_logprobs[-count:] == pytest.approx(
        choice.logprobs.token_logprobs, abs=1e-3
    )


def test_streamed_echo_with_logprobs(client):
    """A streamed echo has the prompt's log probabilities, then the answer's."""
    request: dict[str, Any] = {"prompt": "Triton is", "echo": True, "logprobs": 1, **GREEDY}
    [whole] = client.completions.create(max_tokens=5, **request).choices

    chunks = list(client.completions.create(max_tokens=5, stream=True, **request))

    told = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.text
    assert [token for each in told for token in each.tokens] == whole.logprobs.tokens
    assert [at for each in told for at in each.text_offset] == whole.logprobs.text_offset


@pytest.mark.honours("chat.prompt_logprobs")
def test_prompt_logprobs(client):
    """vLLM's prompt_logprobs: null, then a mapping by token id for each token of the prompt."""
    completion: Any = client.chat.completions.create(
        messages=QUESTION,
        max_tokens=1,
        extra_body={"prompt_logprobs": 0, "return_token_ids": True},
        **GREEDY,
    )

    first, *rest = completion.prompt_logprobs
    assert first is None
    assert [list(position) for position in rest] == [
        [str(token)] for token in completion.prompt_token_ids[1:]
    ]


@pytest.mark.honours("chat.return_tokens_as_token_ids")
def test_tokens_as_ids(client):
    """vLLM's return_tokens_as_token_ids names each token by its id."""
    entries = chat_entries(client, max_tokens=3, extra_body={"return_tokens_as_token_ids": True})

    assert all(entry.token.startswith("token_id:") for entry in entries)


def test_logprobs_with_a_stop_string(client):
    """A stop string cuts the text; log probabilities stay aligned with whole tokens."""
    request: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Count to 7"}],
        "stop": ["5"],
        "logprobs": True,
        **GREEDY,
    }
    [whole] = client.chat.completions.create(**request).choices

    chunks = list(client.chat.completions.create(stream=True, **request))

    streamed = [
        entry.token
        for chunk in chunks
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.message.content
    assert "".join(streamed).startswith(text)
    assert streamed == [entry.token for entry in whole.logprobs.content]


def test_decision_has_the_probabilities_of_the_letters(client):
    """Those of a chat that asks for a letter by hand, reported for the letters' ids."""
    ask = "Reply with the letter of the option that fits best, and with nothing else."
    content = f"What is Triton?\n\nIt is a server.\nA) false\nB) true\n{ask}"
    tokens = client.post("/../tokenize", cast_to=object, body={"model": MODEL, "prompt": "AB"})
    ids = tokens["tokens"][-2:]
    completion = client.chat.completions.create(
        messages=[{"role": "user", "content": content}],
        max_tokens=1,
        logprobs=True,
        extra_body={"logprob_token_ids": ids, "return_tokens_as_token_ids": True},
        **GREEDY,
    )
    [entry] = completion.choices[0].logprobs.content
    found = {top.token: math.exp(top.logprob) for top in entry.top_logprobs}
    false, true = (found[f"token_id:{id}"] for id in ids)

    decision = client.decisions.create(
        model=MODEL,
        input="What is Triton?",
        questions=[
            {"type": "predicate", "instructions": "It is a server."},
            {
                "type": "choice",
                "instructions": "It is a server.",
                "choices": [{"value": False}, {"value": True}],
            },
        ],
    )

    first, second = decision.answers
    assert first.probability == pytest.approx(true / (false + true), rel=1e-3)
    assert second.confidence == pytest.approx(max(false, true), rel=1e-3)
    assert decision.usage.input_tokens == 2 * completion.usage.prompt_tokens
