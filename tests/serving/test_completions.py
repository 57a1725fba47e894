from typing import Any

import openai.types
import pytest

from openai_frontend.errors import ContextLengthExceeded, InvalidRequest
from openai_frontend.serving.admission import Admission
from openai_frontend.serving.answer import Answer
from openai_frontend.serving.completions import Completions, complete
from openai_frontend.serving.fields import FieldPolicy
from openai_frontend.serving.limits import Limits
from schemas.completions import CompletionRequest
from tests.serving.fake_model import FakeModel

COMPLETIONS = Completions(Limits(max_prompts=8), FieldPolicy("reject"), Admission(99))


async def prepare(model: FakeModel, **fields: Any) -> Answer:
    request = CompletionRequest.model_validate({"model": "fake", "prompt": "ab", **fields})
    return await COMPLETIONS.prepare(request, model)  # type: ignore[arg-type]


PROMPTS = [
    ("ab", [("ab", [97, 98])]),
    (["a", "b"], [("a", [97]), ("b", [98])]),
    ([5, 6], [(None, [5, 6])]),
    ([[5], [6, 7]], [(None, [5]), (None, [6, 7])]),
]


@pytest.mark.parametrize(("prompt", "expected"), PROMPTS)
async def test_prompt(prompt, expected):
    """Text is tokenized, token ids pass as they are, and each prompt is a request."""

    answer = await prepare(FakeModel(), prompt=prompt)

    assert expected == [(each.prompt, each.prompt_token_ids) for each in answer.requests]


async def test_choices_are_prompt_major():
    """All choices of the first prompt come before those of the second, each with its own seed."""

    answer = await prepare(FakeModel(), prompt=["a", "b"], n=2, seed=1)

    prompts = [(request.prompt, request.sampling_params.seed) for request in answer.requests]
    assert prompts == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    assert len({request.request_id for request in answer.requests}) == 4


@pytest.mark.parametrize(("fields", "expected"), [({}, 16), ({"max_tokens": 3}, 3)])
async def test_max_tokens(fields, expected):
    """Without max_tokens a completion has 16 tokens, as OpenAI's."""

    answer = await prepare(FakeModel(max_model_len=100), **fields)

    assert expected == answer.requests[0].sampling_params.max_tokens


async def test_one_prompt_too_long():
    """One prompt of many that does not fit refuses them all."""

    with pytest.raises(ContextLengthExceeded) as refused:
        await prepare(FakeModel(max_model_len=20), prompt=["a", "b" * 20])

    assert refused.value.param == "prompt"


REFUSED = [
    ({"prompt": [5, 300]}, "prompt"),
    ({"prompt": ["a"] * 5, "n": 2}, "prompt"),
    ({"best_of": 2}, "best_of"),
    ({"prompt": [5], "echo": True}, "echo"),
    ({"suffix": "end"}, "suffix"),
    ({"logprobs": 0}, "logprobs"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
async def test_refused(fields, param):
    """What cannot be honoured is refused by name."""

    with pytest.raises(InvalidRequest) as refused:
        await prepare(FakeModel(), **fields)

    assert param == refused.value.param


async def test_best_of_equal_to_n():
    """best_of that equals n asks for nothing more."""
    answer = await prepare(FakeModel(), n=2, best_of=2)

    assert len(answer.requests) == 2


async def test_whole_answer():
    """A whole answer has every choice in order; openai-python reads it."""
    answer = await prepare(FakeModel(), prompt=["a", "b"], echo=True)

    completion = await complete(answer)

    read = openai.types.Completion.model_validate_json(completion.model_dump_json())
    assert [(choice.index, choice.text, choice.finish_reason) for choice in read.choices] == [
        (0, "aHello", "stop"),
        (1, "bHello", "stop"),
    ]
    assert (answer.id, "text_completion") == (read.id, read.object)
