import orjson
import pytest

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.request.limits import InferenceLimits
from openai_frontend.serving.request.request_body import BodyReader
from schemas.chat_completions import ChatCompletionRequest

LIMITS = InferenceLimits(max_n=4, max_messages=3, max_prompts=10, max_prompt_tokens=7)


def test_values_at_the_limits_are_accepted():
    LIMITS.check_n(4)
    LIMITS.check_messages(3)
    LIMITS.check_prompts(5, 2)
    LIMITS.check_prompt_tokens(7, "prompt")


REFUSED = [
    (lambda: LIMITS.check_n(5), "n", "integer_above_max_value", "a value <= 4, but got 5"),
    (
        lambda: LIMITS.check_messages(4),
        "messages",
        "array_above_max_length",
        "maximum length 3, but got an array with length 4",
    ),
    (
        lambda: LIMITS.check_prompts(6, 2),
        "prompt",
        "array_above_max_length",
        "maximum length 5, but got an array with length 6",
    ),
    (
        lambda: LIMITS.check_prompt_tokens(8, "prompt"),
        "prompt",
        "max_tokens_per_request",
        "8 tokens, max 7 tokens",
    ),
]


@pytest.mark.parametrize(("check", "param", "code", "numbers"), REFUSED)
def test_value_beyond_a_limit_is_refused(check, param, code, numbers):
    """The message has the limit."""

    with pytest.raises(InvalidRequest) as refused:
        check()

    assert (param, code) == (refused.value.param, refused.value.code)
    assert numbers in refused.value.message


def test_message_has_at_most_10_000_parts():
    """One more is an error of that field."""
    reader = BodyReader(ChatCompletionRequest)

    def body(parts: int) -> bytes:
        content = [{"type": "text", "text": "a"}] * parts
        return orjson.dumps({"model": "m", "messages": [{"role": "user", "content": content}]})

    assert len(reader.parse(body(10_000)).messages[0]["content"] or ()) == 10_000
    with pytest.raises(InvalidRequest) as refused:
        reader.parse(body(10_001))
    assert refused.value.code == "array_above_max_length"
