"""/v1/decisions by OpenAI's SDK and raw, from the gateway as a process with mock models.

In the mock engine, the token that it would write is the likeliest, and each requested token is half
as likely as the one before: the letters have 1/4, 1/8, 1/16, ...
"""

import asyncio
import base64
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests import images, mock_models
from tests.gateway_process import GatewayProcess

TRUE: Any = {"type": "predicate", "instructions": "It is late."}
WHO: Any = {
    "type": "choice",
    "name": "who",
    "instructions": "Who?",
    "choices": [{"value": "true"}, {"value": True, "description": "yes"}, {"value": "other"}],
}
RATE: Any = {
    "type": "score",
    "instructions": "How bad?",
    "levels": [{"label": "good"}, {"label": "fair", "description": "so so"}, {"label": "bad"}],
}
URL = f"data:image/png;base64,{base64.b64encode(images.png()).decode()}"
ASK = "Reply with the letter of the option that fits best, and with nothing else."
PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"
THINKS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n<think>\n"
)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("decisions")
    models = folder / "models"
    tokens: dict[str, Any] = {"tokens": ["Hel", "lo"], "prefix_cache_blocks": 4096}
    mock_models.write_with_tokenizer(models, "mock", **tokens)
    turns = [{"text": "<think>\nhm\n</think>\n\nA"}]
    mock_models.write_with_turns(models, "thinks", turns, chat_template=THINKS)
    mock_models.write_with_turns(models, "plain", [{"text": "A"}], chat_template=PLAIN)
    mock_models.write_with_images(models, "sees")
    mock_models.write_with_tokenizer(models, "embeds", tasks=["embed"])
    mock_models.write_with_tokenizer(models, "fails", fail_after_tokens=0)
    mock_models.write_with_tokenizer(models, "slow", first_token_delay_s=300)
    with GatewayProcess(models, folder / "log") as process:
        process.wait_until_ready()
        yield process


@pytest.fixture(scope="module")
def client(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="x", max_retries=0) as made:
        yield made


def ask(gateway: GatewayProcess, **fields: Any) -> httpx.Response:
    body = {"model": "mock", "input": "hi", "questions": [TRUE], **fields}
    return httpx.post(f"{gateway.url}/v1/decisions", json=body, timeout=60)


def error(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    said: dict[str, Any] = response.json()["error"]
    return said


def test_answers_are_in_the_order_of_the_questions(client):
    decision = client.decisions.create(
        model="mock", input="It is 3 am.", questions=[TRUE, WHO, RATE]
    )

    first, second, third = decision.answers
    assert (first.type, first.name, first.probability) == ("predicate", None, pytest.approx(1 / 3))
    assert (second.type, second.name, second.choice) == ("choice", "who", "true")
    shares = [pytest.approx(4 / 7), pytest.approx(2 / 7), pytest.approx(1 / 7)]
    assert [each.probability for each in second.probabilities] == shares
    assert [each.value for each in second.probabilities] == ["true", True, "other"]
    assert [second.confidence, third.confidence] == [pytest.approx(1 / 4)] * 2
    assert (third.type, third.score) == ("score", pytest.approx(2 / 7 + 2 / 7))
    assert [(each.value, each.label) for each in third.probabilities] == [
        (0, "good"),
        (1, "fair"),
        (2, "bad"),
    ]


def test_usage_counts_each_question(client):
    questions: Any = [TRUE, WHO, RATE] * 2
    usage = client.decisions.create(model="mock", input="word " * 200, questions=questions).usage

    assert usage.output_tokens == len(questions)
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.input_tokens > len(questions) * 200
    assert usage.input_tokens_details.cached_tokens > 0  # all begin with the same text


async def test_async_client(gateway):
    url = f"{gateway.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
        decisions = await asyncio.gather(
            *(client.decisions.create(model="mock", input="a", questions=[RATE]) for _ in range(8))
        )

    assert [each.answers[0].type for each in decisions] == ["score"] * 8


CALL = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "dark"}
ITEMS: dict[str, list[dict[str, Any]]] = {
    "roles": [
        {"role": "developer", "content": "Judge."},
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "hello"}]},
        {"type": "message", "role": "user", "content": "bye"},
    ],
    "a refusal": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ],
    "calls": [
        {"role": "user", "content": "hi"},
        CALL,
        RESULT,
        {"type": "custom_tool_call", "call_id": "d", "name": "run", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "y"},
    ],
    "json": [{"role": "user", "content": [{"type": "input_json", "data": {"a": [1, None]}}]}],
    "a breakpoint": [
        {
            "role": "user",
            "content": [
                {
                    "type": "input_text",
                    "text": "hi",
                    "prompt_cache_breakpoint": {"mode": "explicit"},
                }
            ],
        }
    ],
}


@pytest.mark.parametrize("case", ITEMS)
def test_input_may_be_items(client, case):
    options: Any = {"mode": "implicit", "ttl": "30m"}

    decision = client.decisions.create(
        model="mock",
        input=ITEMS[case],
        questions=[TRUE],
        prompt_cache_key="k",
        prompt_cache_options=options,
        safety_identifier="s",
    )

    assert decision.answers[0].probability == pytest.approx(1 / 3)


def test_prompt_has_the_input_and_the_question_in_one_message(gateway):
    """It has as many tokens as the chat that a client would write by hand."""
    text = 'It is 3 am.\n\nWho?\nA) "true"\nB) true (yes)\nC) "other"\n' + ASK
    body = {"model": "mock", "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    chat = httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=60).json()

    usage = ask(gateway, input="It is 3 am.", questions=[WHO]).json()["usage"]

    assert usage["input_tokens"] == chat["usage"]["prompt_tokens"]


def test_images_of_input_and_instructions_reach_the_model(client):
    image: Any = {"type": "input_image", "image_url": URL}
    text: Any = {"type": "input_text", "text": "Is it this one?"}
    asked: Any = {"type": "predicate", "instructions": [text, image]}

    def tokens(*content: Any) -> int:
        shown: Any = [{"role": "user", "content": [text, *content]}]
        answered = client.decisions.create(model="sees", input=shown, questions=[asked, TRUE])
        return int(answered.usage.input_tokens)

    assert tokens(image) > tokens() + 2  # one more in each of two prompts


OF_TWO_TYPES: list[tuple[dict[str, Any], str]] = [
    ({"type": "input_json", "data": {"a": 1}, "text": "b"}, "text"),
    ({"type": "input_text", "text": "a", "data": {"b": 1}}, "data"),
    ({"type": "refusal", "refusal": "a", "text": "b"}, "text"),
]
INVALID: dict[str, tuple[dict[str, Any], str, str]] = {
    "no question": ({"questions": []}, "questions", "empty_array"),
    "401 questions": ({"questions": [TRUE] * 401}, "questions", "array_above_max_length"),
    "no input": ({"input": None}, "input", "invalid_type"),
    "an empty list": ({"input": []}, "input", "empty_array"),
    "2049 items": (
        {"input": [{"role": "user", "content": "a"}] * 2049},
        "input",
        "array_above_max_length",
    ),
    "an unknown item": (
        {"input": [{"type": "reasoning", "summary": []}]},
        "input[0].type",
        "invalid_value",
    ),
    "an output without call": ({"input": [RESULT]}, "input[0].call_id", "invalid_value"),
    "an output of another kind": (
        {"input": [CALL, {**RESULT, "type": "custom_tool_call_output"}]},
        "input[1].call_id",
        "invalid_value",
    ),
    "a file": (
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
        "input[0].content[0].type",
        "invalid_value",
    ),
    "no data": (
        {"input": [{"role": "user", "content": [{"type": "input_json"}]}]},
        "input[0].content[0].data",
        "missing_required_parameter",
    ),
    **{
        f"{part['type']} and {name}": (
            {"questions": [{**TRUE, "instructions": [part]}]},
            f"questions[0].instructions[0].{name}",
            "unsupported_parameter",
        )
        for part, name in OF_TWO_TYPES
    },
    "long JSON": (
        {
            "input": [
                {
                    "role": "user",
                    "content": [{"type": "input_json", "data": {"a": "b" * 2**18}}],
                }
            ]
        },
        "input[0].content[0].data",
        "invalid_value",
    ),
    "an image": (
        {
            "questions": [
                TRUE,
                {**TRUE, "instructions": [{"type": "input_image", "image_url": "data:,"}]},
            ]
        },
        "questions[1].instructions[0].type",
        "unsupported_value",
    ),
    "an unknown question": (
        {"questions": [{**TRUE, "type": "essay"}]},
        "questions[0].type",
        "invalid_value",
    ),
    "one choice": (
        {"questions": [{**WHO, "choices": [{"value": "a"}]}]},
        "questions[0].choices",
        "array_below_min_length",
    ),
    "27 choices": (
        {"questions": [TRUE, {**WHO, "choices": [{"value": f"{at}"} for at in range(27)]}]},
        "questions[1].choices",
        "array_above_max_length",
    ),
    "27 levels": (
        {"questions": [{**RATE, "levels": [{"label": "a"}] * 27}]},
        "questions[0].levels",
        "array_above_max_length",
    ),
    "the same choice": (
        {"questions": [{**WHO, "choices": [{"value": "a"}, {"value": True}, {"value": "a"}]}]},
        "questions[0].choices[2].value",
        "invalid_value",
    ),
    "a number": (
        {"questions": [{**WHO, "choices": [{"value": 1}, {"value": "a"}]}]},
        "questions[0].choices[0].value",
        "invalid_type",
    ),
    "a number as name": ({"questions": [{**TRUE, "name": 5}]}, "questions[0].name", "invalid_type"),
    "a long identifier": (
        {"safety_identifier": "x" * 129},
        "safety_identifier",
        "string_above_max_length",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_fields_are_named(gateway, case):
    fields, param, code = INVALID[case]

    said = error(ask(gateway, **fields))

    assert (said["param"], said["code"]) == (param, code), said


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("thinks", "no switch that turns reasoning off"),
        ("plain", "does not end with the start of a reply"),
        ("embeds", "does not generate text"),
    ],
)
def test_models_that_cannot_answer_say_why(gateway, model, reason):
    said = error(ask(gateway, model=model))

    assert (said["param"], said["code"]) == ("model", "unsupported_model")
    assert reason in said["message"]


def test_input_beyond_the_context_is_named(gateway):
    said = error(ask(gateway, input="word " * 10_000))

    assert (said["param"], said["code"]) == ("input", "context_length_exceeded")


@pytest.mark.parametrize("field", ["instructions", "choices"])
def test_question_beyond_the_context_is_named(gateway, field):
    long = "word " * 10_000
    choices = [{"value": "a", "description": long}, {"value": "b"}]
    questions = {
        "instructions": {**TRUE, "instructions": long},
        "choices": {"type": "choice", "instructions": "Which?", "choices": choices},
    }

    said = error(ask(gateway, questions=[TRUE, questions[field]]))

    assert (said["param"], said["code"]) == ("questions[1]", "context_length_exceeded")
    assert "reduce the length of the questions[1]" in said["message"]


def test_400_questions_are_answered(gateway):
    answered = ask(gateway, questions=[TRUE] * 400).json()

    assert len(answered["answers"]) == 400


def test_failed_model_is_an_error(gateway):
    assert error(ask(gateway, model="fails"), 500)["code"] == "inference_failed"


@pytest.mark.parametrize(
    "field",
    [
        {"instructions": "Be strict."},
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"tools": [{"type": "function", "name": "f"}]},
        {"stream": True},
        {"moderation": {"model": "guard"}},
    ],
)
def test_field_of_responses_is_refused_by_name(gateway, field):
    """The answers cannot depend on it, although its client expects that."""
    said = error(ask(gateway, **field))

    assert ([said["param"]], said["code"]) == ([*field], "unsupported_parameter")


def test_lost_client_frees_the_slots(gateway):
    """Its requests end, so that the next one does not wait for them."""
    body = {"model": "slow", "input": "hi", "questions": [TRUE] * 400}
    with httpx.Client(base_url=gateway.url) as client, pytest.raises(httpx.ReadTimeout):
        client.post("/v1/decisions", json=body, timeout=5)
    started_s = time.monotonic()
    while running(gateway, "slow") and time.monotonic() - started_s < 60:
        time.sleep(0.1)

    assert running(gateway, "slow") == 0


def running(gateway: GatewayProcess, model: str) -> float:
    metrics = httpx.get(f"{gateway.url}/metrics", timeout=60).text
    pattern = rf'requests_running\{{[^}}]*model="{model}"[^}}]*\}} (\S+)'
    return sum(map(float, re.findall(pattern, metrics)))


def test_body_that_is_not_json(gateway):
    response = httpx.post(
        f"{gateway.url}/v1/decisions",
        content=b'{"questions": [NaN]}',
        headers={"content-type": "application/json"},
    )

    assert error(response)["code"] == "json_invalid"
    assert "decision" not in json.dumps(response.json())
