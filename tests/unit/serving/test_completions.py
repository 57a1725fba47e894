import asyncio
from typing import Any

import openai.types
import orjson
import pytest

from openai_frontend.errors import ContextLengthExceeded, InvalidRequest, QueueFull
from openai_frontend.generation import CompletionDelta, TokenCounts
from openai_frontend.serving.admission.concurrency_limit import ConcurrencyLimiter
from openai_frontend.serving.completions import Completions, complete
from openai_frontend.serving.output.completion_job import CompletionJob
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from schemas.completions import CompletionRequest
from tests.unit.serving.fake_model import FakeModel

COMPLETIONS = Completions(
    InferenceLimits(max_n=4, max_prompts=8, max_prompt_logprobs=150, max_output_tokens=3000),
    FieldPolicy("reject"),
    ConcurrencyLimiter(99),
)


async def prepare(model: FakeModel, **fields: Any) -> CompletionJob:
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


@pytest.mark.parametrize("prompt", [["a"], ["a", "b"]])
async def test_tokens_of_all_answers(prompt):
    """Choices of a length that no server should promise at once are refused before the model."""
    model, answers = FakeModel(), 2 * len(prompt)

    fitting = await prepare(model, prompt=prompt, n=2, max_tokens=3000 // answers)
    assert len(fitting.requests) == answers
    with pytest.raises(InvalidRequest, match="the limit is 3000 per request") as refused:
        await prepare(model, prompt=prompt, n=2, max_tokens=3000 // answers + 1)

    assert (refused.value.param, refused.value.code) == ("n", "integer_above_max_value")


@pytest.mark.parametrize(
    ("fields", "expected"), [({}, 16), ({"max_tokens": 3}, 3), ({"max_tokens": -1}, 98)]
)
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
    ({"prompt": ["a"] * 5, "best_of": 2}, "prompt"),
    ({"n": 3, "best_of": 2}, "best_of"),
    ({"best_of": 5}, "best_of"),
    ({"logprob_token_ids": [1]}, "logprob_token_ids"),
    ({"prompt": ["a" * 50] * 2, "echo": True, "logprobs": 1}, "logprobs"),
    ({"prompt": ["a" * 50] * 2, "prompt_logprobs": 1}, "prompt_logprobs"),
    ({"bad_words": ["a" * 1000] * 5}, "bad_words"),
    ({"best_of": 2, "stream": True}, "best_of"),
    ({"prompt": [5], "suffix": "end"}, "suffix"),
    ({"prompt": [[5]], "suffix": "end"}, "suffix"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
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


UNSUPPORTED = [
    ({"logprobs": 1}, "logprobs", "logprobs"),
    ({"best_of": 2}, "logprobs", "best_of"),
    ({"prompt_logprobs": 1}, "prompt_logprobs", "prompt_logprobs"),
    ({"echo": True, "logprobs": 1}, "prompt_logprobs", "echo"),
    ({"priority": 1}, "priority", "priority"),
    ({"cache_salt": "a"}, "cache_salt", "cache_salt"),
    ({"return_token_ids": True}, "return_token_ids", "return_token_ids"),
    ({"truncate_prompt_tokens": 1}, "prompt_token_ids", "truncate_prompt_tokens"),
]


@pytest.mark.parametrize(("fields", "unsupported", "param"), UNSUPPORTED)
async def test_unsupported_by_the_model(fields, unsupported, param):
    """What this model's tensors cannot carry is refused by the name that the request has for it."""
    model = FakeModel(unsupported=frozenset({unsupported}), max_model_len=99)

    with pytest.raises(InvalidRequest) as refused:
        await prepare(model, **fields)

    assert (param, "unsupported_parameter") == (refused.value.param, refused.value.code)


async def test_no_limit():
    """With -1 each answer may fill the context."""
    answer = await prepare(FakeModel(max_model_len=10), prompt=["a", "abc"], max_tokens=-1)

    assert [each.sampling_params.max_tokens for each in answer.requests] == [9, 7]


async def test_max_tokens_of_zero():
    """Evaluation harnesses ask for no token at all, only for what the prompt is worth."""
    answer = await prepare(FakeModel(), max_tokens=0, echo=True, logprobs=1)

    params = answer.requests[0].sampling_params
    assert (params.max_tokens, params.logprobs, params.prompt_logprobs) == (0, 1, 1)


@pytest.mark.parametrize("prompt", [None, ""])
async def test_no_prompt(prompt):
    """Without a prompt the model begins a document, from the token that stands before one."""
    answer = await prepare(FakeModel(), prompt=prompt)

    assert answer.requests[0].prompt_token_ids == [2]


async def test_no_prompt_for_a_model_without_a_start():
    """A model that has no such token has nothing to begin from."""
    with pytest.raises(InvalidRequest) as refused:
        await prepare(FakeModel(document_start=None), prompt="")

    assert (refused.value.param, refused.value.code) == ("prompt", "empty_string")


async def test_suffix():
    """With a suffix the model gets its family's form for filling in the middle."""
    answer = await prepare(FakeModel(), prompt="a", suffix="b", echo=True)

    assert answer.requests[0].prompt == "a_b"
    assert answer.echo == ["a"]


async def test_echo_of_a_prompt_that_was_cut():
    """What is echoed is what the model read."""
    model = FakeModel(max_model_len=99)

    answer = await prepare(model, prompt="abcd", echo=True, truncate_prompt_tokens=2)

    assert answer.echo == ["cd"]


async def test_prompts_are_tokenized_in_turns():
    """Between two prompts others may have the event loop."""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    await prepare(FakeModel(), prompt=["a"] * 8)
    counting.cancel()

    assert turns >= 8


async def test_echo_of_token_ids():
    """A prompt of token ids is echoed as the text that they stand for."""
    answer = await prepare(FakeModel(), prompt=[[97], [98]], echo=True)

    assert answer.echo == ["a", "b"]


TRUNCATED = [
    ({"truncate_prompt_tokens": 2}, "cd"),
    ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, "ab"),
    ({"truncate_prompt_tokens": 3}, "bcd"),
    ({"truncate_prompt_tokens": -1}, "bcd"),
]


@pytest.mark.parametrize(("fields", "kept"), TRUNCATED)
@pytest.mark.parametrize("prompt", ["abcd", [97, 98, 99, 100]])
async def test_truncation(prompt, fields, kept):
    """A prompt is cut to so many tokens; -1 leaves room for the answer in the context."""
    answer = await prepare(FakeModel(max_model_len=19), prompt=prompt, **fields)

    assert "".join(map(chr, answer.requests[0].prompt_token_ids or ())) == kept


def told(logprob: float, text: str = "x") -> CompletionDelta:
    """The only delta of an answer, whose one token has this log probability."""
    position = {ord(text): {"logprob": logprob, "rank": 1, "decoded_token": text}}
    return CompletionDelta(text, [ord(text)], "stop", counts=TokenCounts(1, 1), logprobs=[position])


async def test_best_of():
    """Of best_of answers the likeliest n are kept, likeliest first; every token is counted."""
    model = FakeModel([[told(-3.0, "a")]], answers=[told(-1.0, "b"), told(-2.0, "c")])
    answer = await prepare(model, n=2, best_of=3)

    completion = await complete(answer)

    choices = completion["choices"]
    assert [(choice["index"], choice["text"]) for choice in choices] == [(0, "b"), (1, "c")]
    assert completion["usage"]["completion_tokens"] == 3
    assert [choice["logprobs"] for choice in choices] == [None, None]


async def test_whole_answer():
    """A whole answer has every choice in order; openai-python reads it."""
    answer = await prepare(FakeModel(), prompt=["a", "b"], echo=True)

    completion = await complete(answer)

    read = openai.types.Completion.model_validate_json(orjson.dumps(completion))
    assert [(choice.index, choice.text, choice.finish_reason) for choice in read.choices] == [
        (0, "aHello", "stop"),
        (1, "bHello", "stop"),
    ]
    assert (answer.id, "text_completion") == (read.id, read.object)


async def test_the_length_of_all_prompts():
    """They are counted together, and those beyond the limit are not even tokenized."""
    completions = Completions(
        InferenceLimits(max_prompt_tokens=5), FieldPolicy("reject"), ConcurrencyLimiter(99)
    )
    model: Any = FakeModel()
    fits = CompletionRequest(model="m", prompt=["ab", "abc"])
    longer = CompletionRequest(model="m", prompt=["abc", "abc", ""])

    assert len((await completions.build_job(fits, model)).requests) == 2
    for read in (completions.prepare, completions.build_job):
        with pytest.raises(InvalidRequest) as refused:
            await read(longer, model)
        assert (refused.value.param, refused.value.code) == ("prompt", "max_tokens_per_request")


async def test_a_full_queue():
    """Who would not even wait is told before anything is tokenized."""
    completions = Completions(
        InferenceLimits(), FieldPolicy("reject"), limiter := ConcurrencyLimiter(1)
    )
    model: Any = FakeModel()
    await limiter.slots_for(model).acquire(1)
    model.tokenize = None

    with pytest.raises(QueueFull):
        await completions.prepare(CompletionRequest(model="m", prompt="a"), model)
