"""Fields of /v1/decisions: which reach the prompt, decide the answer, have no effect, or are
refused. The answer of the model says whether the prompt has the trace.
"""

from typing import Any

import pytest

from tests import images
from tests.api.conformance.traced import TRACE, Ask, Body, leaves, rows

PREFIX = "decisions"
accepts, honours = pytest.mark.accepts, pytest.mark.honours
SEEN, UNSEEN = pytest.approx(2 / 3), pytest.approx(1 / 3)  # whether "B" is the likeliest letter
TRUE: Body = {"type": "predicate", "instructions": "a"}
CHOICE: Body = {
    "type": "choice",
    "instructions": "a",
    "choices": [{"value": "a"}, {"value": "b"}],
}
SCORE: Body = {"type": "score", "instructions": "a", "levels": [{"label": "a"}, {"label": "b"}]}


@pytest.fixture
def ask(traced_client) -> Ask:
    """Posts the body, to which a model, an input and a question are added."""
    plain = {"model": "decides", "input": "hi", "questions": [TRUE]}
    return lambda body: traced_client.post("/v1/decisions", json={**plain, **body})


def second(response: Any) -> float:
    """The probability of the second option."""
    assert response.status_code == 200, response.text
    [answer] = response.json()["answers"]
    probability: float = answer.get("probability") or answer["probabilities"][1]["probability"]
    return probability


def item(**fields: Any) -> Body:
    return {"input": [{"role": "user", "content": "hi"}, fields]}


def user(**part: Any) -> Body:
    return item(role="user", content=[part])


def asked(question: Body, **fields: Any) -> Body:
    return {"questions": [{**question, **fields}]}


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
CUSTOM = {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"}
SAID = {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]}


def output(kind: str, **fields: Any) -> Body:
    call = {**(CALL if kind == "function_call" else CUSTOM), "call_id": fields.get("call_id", "c")}
    own = {"type": f"{kind}_output", "call_id": "c", "output": "x", **fields}
    return {"input": [{"role": "user", "content": "hi"}, call, own]}


KINDS = ("function_call", "custom_tool_call")
HONOURED: list[Body] = [
    {"input": TRACE},
    user(type="input_text", text=TRACE),
    user(type="input_json", data={"a": [TRACE]}),
    *(item(role=role, content=TRACE) for role in ("user", "developer", "system", "assistant")),
    *(
        item(role=role, content=[{"type": "input_text", "text": TRACE}])
        for role in ("developer", "system")
    ),
    item(role="assistant", content=[{"type": "output_text", "text": TRACE}]),
    item(role="assistant", content=[{"type": "refusal", "refusal": TRACE}]),
    *(item(**{**CALL, name: TRACE}) for name in ("call_id", "name", "namespace")),
    item(**{**CALL, "arguments": f'{{"a": "{TRACE}"}}'}),
    *(item(**{**CUSTOM, name: TRACE}) for name in ("call_id", "name", "namespace", "input")),
    *(output(kind, **{name: TRACE}) for kind in KINDS for name in ("call_id", "output")),
    *(
        asked(each, instructions=[{"type": "refusal", "refusal": TRACE}])
        for each in (TRUE, CHOICE, SCORE)
    ),
    *(asked(each, instructions=TRACE) for each in (TRUE, CHOICE, SCORE)),
    asked(TRUE, instructions=[{"type": "input_text", "text": TRACE}]),
    asked(TRUE, instructions=[{"type": "input_json", "data": [{"a": TRACE}]}]),
    asked(CHOICE, choices=[{"value": TRACE}, {"value": "b"}]),
    asked(CHOICE, choices=[{"value": True}, {"value": "b", "description": TRACE}]),
    asked(SCORE, levels=[{"label": TRACE}, {"label": "b"}]),
    asked(SCORE, levels=[{"label": "a"}, {"label": "b", "description": TRACE}]),
]


@pytest.mark.parametrize("body", rows(PREFIX, honours, HONOURED))
def test_text_of_the_field_is_in_the_prompt(ask, body):
    assert second(ask(body)) == SEEN


@honours(
    "decisions.input.function_call_output.output.input_text",
    "decisions.input.output.data",
    "decisions.input.output.refusal",
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_text", "text": TRACE},
        {"type": "input_json", "data": {"a": TRACE}},
        {"type": "refusal", "refusal": TRACE},
    ],
    ids=lambda part: part["type"],
)
def test_text_of_an_output_is_in_the_prompt(ask, kind, part):
    assert second(ask(output(kind, output=[part]))) == SEEN


PLACES: dict[str, Any] = {
    "input.user.content": lambda part: user(**part),
    "input.function_call_output.output": lambda part: output("function_call", output=[part]),
    "questions.predicate.instructions": lambda part: asked(TRUE, instructions=[part]),
}


@honours(
    "decisions.model",
    "decisions.input.function_call_output.output.input_image",
    *(
        f"decisions.{place}.input_image{name}"
        for place in ("input.user.content", "questions.predicate.instructions")
        for name in ("", ".image_url", ".detail")
    ),
)
@accepts("decisions.input.user.content.input_image.prompt_cache_breakpoint")
@pytest.mark.parametrize("detail", ["low", "high"])
@pytest.mark.parametrize("place", PLACES)
def test_image_reaches_the_model(ask, place, detail):
    """It has a placeholder in the prompt."""
    part = {
        "type": "input_image",
        "image_url": images.data_url(images.red_circle()),
        "detail": detail,
        "prompt_cache_breakpoint": {"mode": "explicit"},
    }
    plain = {"type": "input_text", "text": ""}

    tokens, others = (
        ask({**PLACES[place](each), "model": "images"}).json()["usage"]["input_tokens"]
        for each in (part, plain)
    )

    assert tokens > others


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(each, marks=honours(f"decisions.questions.{each['type']}.name"))
        for each in (TRUE, CHOICE, SCORE)
    ],
)
def test_name_is_returned(ask, question):
    [answer] = ask(asked(question, name="n")).json()["answers"]

    assert (answer["type"], answer["name"]) == (question["type"], "n")


BREAKPOINT = {"mode": "explicit", "x": TRACE}
IGNORED: list[Body] = [
    user(type="input_text", text="x", prompt_cache_breakpoint=BREAKPOINT),
    *(
        item(role=role, content=[
            {"type": "input_text", "text": "x", "prompt_cache_breakpoint": BREAKPOINT}
        ])
        for role in ("developer", "system")
    ),
    *(item(**each, **{name: TRACE}) for each in (CALL, CUSTOM) for name in ("id", "status")),
    *(output(kind, **{name: TRACE}) for kind in KINDS for name in ("id", "status")),
    *({name: TRACE} for name in ("safety_identifier", "prompt_cache_key")),
    {"prompt_cache_options": {"ttl": TRACE}},
]  # fmt: skip


@pytest.mark.parametrize("body", leaves(PREFIX, accepts, IGNORED))
def test_field_is_accepted_without_effect(ask, body):
    assert second(ask(body)) == UNSEEN


@accepts(
    "decisions.input.assistant.phase",
    "decisions.prompt_cache_options",
    "decisions.prompt_cache_options.mode",
)
@pytest.mark.parametrize(
    "body",
    [item(**SAID, phase="commentary"), {"prompt_cache_options": {"mode": "explicit"}}],
)
def test_value_is_accepted_without_effect(ask, body):
    assert second(ask(body)) == UNSEEN
