"""Answers of decisions from log probabilities, among them impossible ones."""

import math
from typing import Any

import pytest

from openai_frontend.errors import MalformedOutput
from openai_frontend.serving.dialects.responses.decision_questions import answer, parts_of
from schemas.decisions import ChoiceQuestion, Predicate, ScoreQuestion

IDS = [10, 11, 12, 13]  # of the letters A to D
TRUE = Predicate(type="predicate", instructions="It is late.")
CHOICE = ChoiceQuestion.model_validate(
    {
        "type": "choice",
        "instructions": "Who?",
        "choices": [{"value": "true", "description": "as text"}, {"value": True}],
    }
)
SCORE = ScoreQuestion.model_validate(
    {
        "type": "score",
        "instructions": "How bad?",
        "levels": [{"label": each} for each in ("good", "fair", "bad")],
    }
)


def position(*probabilities: float) -> dict[int, dict[str, Any]]:
    logs = [math.log(each) if each > 0 else -math.inf for each in probabilities]
    return {id: {"logprob": each} for id, each in zip(IDS, logs, strict=False)}


def test_probabilities_are_shares_of_the_letters():
    """The confidence is not: it counts what the model may write otherwise."""
    said = answer(SCORE, 0, position(0.1, 0.2, 0.1), IDS)

    assert said["score"] == pytest.approx(1.0)
    assert said["confidence"] == pytest.approx(0.2)
    assert [each["probability"] for each in said["probabilities"]] == pytest.approx(
        [0.25, 0.5, 0.25]
    )


def test_letter_that_the_engine_excludes_has_no_probability():
    assert answer(TRUE, 0, position(0.5, 0.0), IDS)["probability"] == 0.0


def test_tiny_probabilities_keep_their_ratio():
    tiny = {id: {"logprob": value} for id, value in zip(IDS, (-2000.0, -2001.0), strict=False)}

    said = answer(CHOICE, 0, tiny, IDS)

    assert (said["choice"], said["confidence"]) == ("true", 0.0)
    assert said["probabilities"][0]["probability"] == pytest.approx(1 / (1 + math.exp(-1)))


def test_values_of_another_type_are_other_choices():
    said = answer(CHOICE, 0, position(0.1, 0.3), IDS)

    assert said["choice"] is True


def test_question_as_text():
    [part] = parts_of(CHOICE)

    assert part["text"].splitlines()[:3] == ["Who?", 'A) "true" (as text)', "B) true"]


BAD: dict[str, tuple[Any, str]] = {
    "nothing": ({}, "no log probability for 2 of 2 letters for questions[7]"),
    "one missing": ({10: {"logprob": -1.0}}, "no log probability for 1 of 2 letters"),
    "not a number": (
        {10: {"logprob": -1.0}, 11: {"logprob": math.nan}},
        "a log probability above 0, or none",
    ),
    "logits": ({10: {"logprob": 4.0}, 11: {"logprob": 2.0}}, "a log probability above 0"),
    "no probability": (position(0.0, 0.0), "no probability for any letter"),
    "null": ({10: {"logprob": None}, 11: {"logprob": None}}, "no probability for any letter"),
}


@pytest.mark.parametrize("case", BAD)
def test_impossible_log_probabilities_are_an_error(case):
    given, message = BAD[case]

    with pytest.raises(MalformedOutput) as raised:
        answer(TRUE, 7, given, IDS)

    assert message in raised.value.message
