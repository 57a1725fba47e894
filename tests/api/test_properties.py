"""Random requests get a valid response or a 400 that names the field; streams equal the response.

tests/api/conformance/wire.py checks every response against the SDK's types and every stream
against the order of its events.
"""

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.conformance.wire import VIOLATIONS
from tests.examples import scaled

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
WORDS = st.sampled_from(["What is Triton?", "Count to 5", "Hello", "日本", "a b c"])
INT = st.integers(-2, 2**63)
NUMBER = st.floats(-3, 3, allow_nan=False)
ANY = st.none() | st.booleans() | INT | NUMBER | TEXT | st.lists(INT, max_size=2)

# valid in every combination, whatever the model generates
SOUND: dict[str, st.SearchStrategy[Any]] = {
    "n": st.integers(1, 4),
    "max_tokens": st.integers(1, 14),
    "temperature": st.sampled_from([0, 0.5, 1.0]),
    "top_p": st.sampled_from([0, 0.5, 1]),
    "top_k": st.sampled_from([-1, 1, 5]),
    "min_p": st.sampled_from([0.0, 0.1]),
    "presence_penalty": st.sampled_from([-1, 0.5]),
    "frequency_penalty": st.sampled_from([-1, 0.5]),
    "repetition_penalty": st.sampled_from([1.0, 1.2]),
    "stop": st.sampled_from(["e", [",", "Triton"], ["xyz"]]),
    "ignore_eos": st.booleans(),
    "logit_bias": st.sampled_from([{}, {"5": -100}, {"5": 1, "6": 2}]),
    "skip_special_tokens": st.booleans(),
    "include_stop_str_in_output": st.booleans(),
    "return_token_ids": st.booleans(),
    "user": TEXT,
    "metadata": st.dictionaries(TEXT, TEXT, max_size=2),
    "service_tier": st.sampled_from(["auto", "flex"]),
}
CHAT_LOGPROBS = st.sampled_from([{}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 2}])
SOUND_CHAT = {**SOUND, "max_completion_tokens": st.integers(1, 14)}
SOUND_COMPLETIONS = {
    **SOUND,
    "logprobs": st.sampled_from([None, 0, 2]),
    "echo": st.booleans(),
}
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": WORDS}),
    min_size=1,
    max_size=3,
)
PROMPTS = WORDS | st.lists(WORDS, min_size=1, max_size=2) | st.just([5, 6]) | st.just([[5], [6, 7]])
# of any type and size: most are refused
ANYTHING = {name: strategy | ANY for name, strategy in SOUND_CHAT.items()} | {
    "logprobs": ANY,
    "top_logprobs": ANY,
    "stream": st.booleans(),
    "stream_options": st.dictionaries(st.sampled_from(["include_usage", "x"]), ANY, max_size=2),
    "response_format": st.dictionaries(st.sampled_from(["type", "json_schema"]), ANY, max_size=2),
    "tools": ANY,
    "chat_template_kwargs": st.dictionaries(TEXT, ANY, max_size=2),
    "unknown": ANY,
}
ANY_MESSAGES = MESSAGES | st.lists(
    st.dictionaries(st.sampled_from(["role", "content", "name", "tool_calls"]), ANY, max_size=3),
    max_size=2,
)
MANY = settings(
    max_examples=scaled(80), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # other tests measure the gateway's own time
FEW = settings(MANY, max_examples=scaled(10))


def post(url: str, body: dict[str, Any]) -> httpx.Response:
    """The response, checked for violations of its format."""
    response = httpx.post(url, json=body, timeout=60)
    found = VIOLATIONS.copy()
    VIOLATIONS.clear()
    assert found == []
    return response


def choices_of(answer: dict[str, Any]) -> dict[int, Any]:
    """What a complete answer has for each choice."""
    return {
        choice["index"]: (
            choice["message"]["content"] if "message" in choice else choice["text"],
            choice["finish_reason"],
            rounded(logprob_columns(choice)),
            choice.get("token_ids"),
        )
        for choice in answer["choices"]
    }


def logprob_columns(choice: dict[str, Any]) -> dict[str, list[Any]]:
    columns = {name: list(value) for name, value in (choice["logprobs"] or {}).items() if value}
    return columns


def collected(events: list[dict[str, Any]]) -> dict[int, Any]:
    """The same from a stream."""
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    ids: dict[int, list[int]] = {}
    logprobs: dict[int, dict[str, list[Any]]] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        index = choice["index"]
        text = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
        texts[index] = texts.get(index, "") + text
        reasons[index] = choice["finish_reason"] or reasons.get(index, "")
        ids.setdefault(index, []).extend(choice.get("token_ids") or ())
        for name, column in logprob_columns(choice).items():
            logprobs.setdefault(index, {}).setdefault(name, []).extend(column)
    return {
        index: (texts[index], reasons[index], rounded(logprobs.get(index, {})), ids[index] or None)
        for index in texts
    }


def rounded(value: Any) -> Any:
    """Log probabilities rounded, because another batch changes the last digits."""
    if isinstance(value, float):
        return round(value, 2) + 0.0
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


def usage_of(answer: dict[str, Any]) -> list[int]:
    """The counts that do not depend on the engine's prefix cache."""
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return [answer["usage"][name] for name in names]


def check_both_endings(url: str, body: dict[str, Any]) -> None:
    """Compares the complete answer with the collected stream, for the same seed."""
    body = {"seed": 7, **body}
    post(url, {**body, "n": 1})  # the engine's prefix cache is then equal for both
    whole = post(url, body)
    assert whole.status_code == 200, whole.text
    streamed = post(url, {**body, "stream": True, "stream_options": {"include_usage": True}})

    data = [line.removeprefix("data: ") for line in streamed.text.split("\n\n") if line]
    events = [json.loads(each) for each in data[:-1]]
    assert collected(events) == choices_of(whole.json())
    assert usage_of(events[-1]) == usage_of(whole.json())


chat_bodies = st.builds(
    lambda fields, logprobs: {**fields, **logprobs},
    st.fixed_dictionaries({"messages": MESSAGES}, optional=SOUND_CHAT),
    CHAT_LOGPROBS,
)
completion_bodies = st.fixed_dictionaries({"prompt": PROMPTS}, optional=SOUND_COMPLETIONS)


@pytest.mark.slow
@MANY
@given(body=chat_bodies)
def test_chat_stream_equals_the_complete_answer(mock_gateway, body):
    """For any fields, a chat's stream collects to its complete answer: text, reasons, logprobs,
    usage.
    """
    check_both_endings(mock_gateway.url + CHAT, {"model": "mock", **body})


@pytest.mark.slow
@MANY
@given(body=completion_bodies)
def test_completions_stream_equals_the_complete_answer(mock_gateway, body):
    """With one prompt and with several."""
    check_both_endings(mock_gateway.url + COMPLETIONS, {"model": "mock", **body})


@pytest.mark.slow
@MANY
@given(body=st.fixed_dictionaries({"messages": ANY_MESSAGES}, optional=ANYTHING))
def test_any_request_gets_a_response(mock_gateway, body):
    """Any request gets an answer or a 400 in OpenAI's format."""
    response = post(mock_gateway.url + CHAT, {"model": "mock", **body})

    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        error = response.json()["error"]
        assert (error["type"], bool(error["code"])) == ("invalid_request_error", True), error
        assert error["param"], error


@pytest.mark.engine
@FEW
@given(body=chat_bodies)
def test_vllm_chat_stream_equals_the_complete_answer(gateway, body):
    """With vLLM, the fields change the tokens."""
    check_both_endings(gateway.url + CHAT, {"model": "demo", **body})


@pytest.mark.engine
@FEW
@given(body=completion_bodies)
def test_vllm_completions_stream_equals_the_complete_answer(gateway, body):
    check_both_endings(gateway.url + COMPLETIONS, {"model": "demo", **body})
