"""Questions of a decision as texts with lettered options, and log probabilities as answers."""

import math
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

import orjson

from openai_frontend.errors import InvalidRequest, MalformedOutput
from schemas.decisions import (
    ChoiceQuestion,
    Predicate,
    Question,
)

# One letter is one token at the start of a message in the usual tokenizers; vLLM uses them too
LABELS: Sequence[str] = ascii_uppercase

_ASK = "Reply with the letter of the option that fits best, and with nothing else."
_ROUNDING = 1e-3  # of a log probability, which is never above 0
Logprobs = Mapping[int, Mapping[str, Any]]


def check_options(questions: Sequence[Question]) -> int:
    """The number of letters that the questions need. Raises InvalidRequest for too many options,
    and for choices that are the same.
    """
    for at, question in enumerate(questions):
        count, field = len(_options(question)), _field(question)
        if count > len(LABELS):
            message = (
                f"Invalid 'questions[{at}].{field}': this server supports at most {len(LABELS)} "
                f"options, since each needs a letter, but got {count}."
            )
            param = f"questions[{at}].{field}"
            raise InvalidRequest(message, param=param, code="array_above_max_length")
        if isinstance(question, ChoiceQuestion):
            _check_unique(question, at)
    return max(len(_options(each)) for each in questions)


def _field(question: Question) -> str:
    return "choices" if isinstance(question, ChoiceQuestion) else "levels"


def _check_unique(question: ChoiceQuestion, at: int) -> None:
    seen = set()
    for position, choice in enumerate(question.choices):
        typed = type(choice.value), choice.value
        if typed in seen:
            param = f"questions[{at}].choices[{position}].value"
            raise InvalidRequest(f"Invalid '{param}': an earlier choice has it.", param=param)
        seen.add(typed)


def _options(question: Question) -> list[str]:
    """The options as text. A boolean and a string of the same letters differ by quotes."""
    if isinstance(question, Predicate):
        return ["false", "true"]
    if isinstance(question, ChoiceQuestion):
        values = [
            (orjson.dumps(each.value).decode(), each.description) for each in question.choices
        ]
    else:
        values = [(each.label, each.description) for each in question.levels]
    return [f"{name} ({description})" if description else name for name, description in values]


def _json(value: str | bool) -> str:
    return orjson.dumps(value).decode()


def parts_of(question: Question) -> list[Mapping[str, Any]]:
    """The question as parts of a user's message: its instructions, and its options."""
    options = zip(LABELS, _options(question), strict=False)
    asked = "\n".join([*(f"{label}) {option}" for label, option in options), _ASK])
    instructions = question.instructions
    if isinstance(instructions, str):
        return [{"type": "input_text", "text": f"{instructions}\n{asked}"}]
    return [*instructions, {"type": "input_text", "text": asked}]


def answer(
    question: Question, at: int, position: Logprobs, label_ids: Sequence[int]
) -> dict[str, Any]:
    """The answer from the log probabilities at the first position of the output.

    Raises MalformedOutput if they are missing or no probabilities.
    """
    logprobs = _label_logprobs(at, position, label_ids[: len(_options(question))])
    top = max(logprobs)
    weights = [math.exp(each - top) for each in logprobs]
    total = sum(weights)
    shares = [each / total for each in weights]
    named = {"type": question.type, "name": question.name}
    if isinstance(question, Predicate):
        return {**named, "probability": shares[1]}
    confidence = min(1.0, math.exp(top))
    if isinstance(question, ChoiceQuestion):
        values = [each.value for each in question.choices]
        chosen = {"choice": values[logprobs.index(top)], "confidence": confidence}
        pairs = zip(values, shares, strict=True)
        listed = [{"value": value, "probability": share} for value, share in pairs]
        return {**named, **chosen, "probabilities": listed}
    score = sum(value * share for value, share in enumerate(shares))
    levels = [
        {"value": value, "label": level.label, "probability": share}
        for value, (level, share) in enumerate(zip(question.levels, shares, strict=True))
    ]
    return {**named, "score": score, "confidence": confidence, "probabilities": levels}


def _label_logprobs(at: int, position: Logprobs, label_ids: Sequence[int]) -> list[float]:
    entries = [position.get(each) for each in label_ids]
    values = [
        -math.inf if each is None or each["logprob"] is None else float(each["logprob"])
        for each in entries
    ]
    if None in entries:
        missing = entries.count(None)
        problem = f"no log probability for {missing} of {len(entries)} letters"
    elif any(math.isnan(each) or each > _ROUNDING for each in values):
        problem = "a log probability above 0, or none"
    elif max(values) == -math.inf:
        problem = "no probability for any letter"
    else:
        return values
    raise MalformedOutput(f"The model returned {problem} for questions[{at}].")
