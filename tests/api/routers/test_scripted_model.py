"""A scripted model behind the gateway: OpenAI's SDK runs an agent's rounds of calls and results."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests import mock_models
from tests.gateway_process import GatewayProcess


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


TURNS: list[dict[str, Any]] = [
    {
        "contains": "fix the test",
        "after": 0,
        "text": f"<think>\nI read it first. 😀\n</think>\n\n{call('read', path='ä.py')}",
    },
    {"contains": "fix the test", "after": 1, "text": call("run", command="pytest")},
    {"contains": "fix the test", "after": 2, "text": "<think>\nIt passes.\n</think>\n\nFixed. ✓"},
    {"contains": "hello", "text": ""},
]
NAMES = ("read", "run")
TOOLS: Any = [{"type": "function", "function": {"name": name}} for name in NAMES]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("scripted")
    mock_models.write_with_turns(folder / "models", "agent", TURNS, prefix_cache_blocks=4096)
    with GatewayProcess(folder / "models", folder / "log") as process:
        process.wait_until_ready()
        yield process


@pytest.fixture(scope="module")
def client(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    url = f"{gateway.url}/v1"
    with openai.OpenAI(base_url=url, api_key="x", max_retries=0, timeout=60) as made:
        yield made


def run(client: openai.OpenAI, *, stream: bool, system: str = "Be brief.") -> list[Any]:
    """The answers up to the first one without calls, each as the SDK returns it."""
    messages: list[Any] = [
        {"role": "system", "content": system},
        {"role": "user", "content": "Please fix the test."},
    ]
    answers: list[Any] = []
    while not answers or answers[-1].choices[0].message.tool_calls:
        asked: Any = {"model": "agent", "messages": messages, "tools": TOOLS}
        if stream:
            options: Any = {"include_usage": True}
            with client.chat.completions.stream(**asked, stream_options=options) as events:
                answers.append(events.get_final_completion())
        else:
            answers.append(client.chat.completions.create(**asked))
        message = answers[-1].choices[0].message
        messages.append(message.to_dict())
        messages += [
            {"role": "tool", "tool_call_id": each.id, "content": "ok"}
            for each in message.tool_calls or ()
        ]
    return answers


def seen(answer: Any) -> tuple[Any, ...]:
    message = answer.choices[0].message
    calls = [
        (each.function.name, json.loads(each.function.arguments))
        for each in message.tool_calls or ()
    ]
    reasoning = message.to_dict().get("reasoning_content")
    return reasoning or None, calls, message.content or None, answer.choices[0].finish_reason


@pytest.mark.parametrize("stream", [False, True])
def test_rounds_of_an_agent(client, stream):
    """Reasoning and a call, the next call, then the final text."""
    assert [seen(answer) for answer in run(client, stream=stream)] == [
        ("I read it first. 😀", [("read", {"path": "ä.py"})], None, "tool_calls"),
        (None, [("run", {"command": "pytest"})], None, "tool_calls"),
        ("It passes.", [], "Fixed. ✓", "stop"),
    ]


def test_usage_is_in_the_tokens_of_the_model(client, gateway):
    """Those that the gateway's tokenizer finds in the turn's text."""
    first, *_ = run(client, stream=False)
    text = TURNS[0]["text"]
    body = {"model": "agent", "prompt": text, "add_special_tokens": False}
    found = httpx.post(f"{gateway.url}/tokenize", json=body).json()

    assert first.usage.completion_tokens == found["count"]


def test_later_rounds_find_the_earlier_prompt_in_the_cache(client):
    """All full blocks of 16 tokens of the prompt before it."""
    first, second, _ = run(client, stream=False, system="A prompt of this test. " * 20)
    cached = second.usage.prompt_tokens_details.cached_tokens

    assert cached >= first.usage.prompt_tokens // 16 * 16 > 100


def test_max_tokens_cuts_the_output(client):
    """The finish reason is `length`."""
    answer = client.chat.completions.create(
        model="agent", max_tokens=5, messages=[{"role": "user", "content": "fix the test"}]
    )

    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 5)


def test_empty_output(client):
    """A turn's text may be empty."""
    answer = client.chat.completions.create(
        model="agent", messages=[{"role": "user", "content": "hello"}]
    )

    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("", "stop")


def test_log_probabilities_are_of_the_tokens(client):
    """Their texts join to the output, and the alternatives are tokens of the vocabulary."""
    answer = client.chat.completions.create(
        model="agent", messages=[{"role": "user", "content": "fix the test"}],
        logprobs=True, top_logprobs=3,
    )  # fmt: skip
    found = answer.choices[0].logprobs.content

    assert len(found) == answer.usage.completion_tokens
    text = b"".join(bytes(each.bytes) for each in found).decode()
    assert text == TURNS[0]["text"]
    assert all(len(each.top_logprobs) == 3 for each in found)


def test_prompt_without_a_turn_is_a_400(client):
    """Its message names the turns."""
    with pytest.raises(openai.BadRequestError, match=r"turns: none matches.*'fix the test' and 0"):
        client.chat.completions.create(
            model="agent", messages=[{"role": "user", "content": "something else"}]
        )


def test_prompt_of_an_agent_fits(client):
    """The context is 200,000 tokens."""
    system = "word " * 25_000
    answer, *_ = run(client, stream=True, system=system)

    assert answer.usage.prompt_tokens > 25_000
    assert client.models.retrieve("agent").to_dict()["max_model_len"] == 200_000
