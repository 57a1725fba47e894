import asyncio
from typing import Any

import openai.types
import orjson
import pytest

from openai_frontend.errors import ContextLengthExceeded, InvalidRequest, QueueFull
from openai_frontend.generation import CompletionDelta, TokenCounts
from openai_frontend.serving.admission.concurrency_limit import ConcurrencyLimiter
from openai_frontend.serving.admission.permit import Admission
from openai_frontend.serving.dialects.completions import Completions, complete
from openai_frontend.serving.output.completion_job import CompletionJob
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from schemas.completions import CompletionRequest
from tests.fast.serving.fake_model import FakeModel, admission

COMPLETIONS = Completions(
    InferenceLimits(max_n=4, max_prompts=8, max_prompt_logprobs=150, max_output_tokens=3000),
    FieldPolicy("reject"),
    admission(),
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
async def test_each_prompt_becomes_a_request(prompt, expected):
    """Text is tokenized; token ids pass unchanged."""

    answer = await prepare(FakeModel(), prompt=prompt)

    assert expected == [(each.prompt, each.prompt_token_ids) for each in answer.requests]


async def test_choices_are_ordered_by_prompt():
    """All choices of the first prompt precede those of the second. Each has its own seed."""

    answer = await prepare(FakeModel(), prompt=["a", "b"], n=2, seed=1)

    prompts = [(request.prompt, request.sampling_params.seed) for request in answer.requests]
    assert prompts == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    assert len({request.request_id for request in answer.requests}) == 4


@pytest.mark.parametrize("prompt", [["a"], ["a", "b"]])
async def test_total_tokens_beyond_the_limit_are_refused(prompt):
    """The request does not reach the model."""
    model, answers = FakeModel(), 2 * len(prompt)

    fitting = await prepare(model, prompt=prompt, n=2, max_tokens=3000 // answers)
    assert len(fitting.requests) == answers
    with pytest.raises(InvalidRequest, match="the limit is 3000 per request") as refused:
        await prepare(model, prompt=prompt, n=2, max_tokens=3000 // answers + 1)

    assert (refused.value.param, refused.value.code) == ("n", "integer_above_max_value")


@pytest.mark.parametrize(
    ("fields", "expected"), [({}, 16), ({"max_tokens": 3}, 3), ({"max_tokens": -1}, 98)]
)
async def test_max_tokens_defaults_to_16(fields, expected):
    """OpenAI's API has the same default."""

    answer = await prepare(FakeModel(max_model_len=100), **fields)

    assert expected == answer.requests[0].sampling_params.max_tokens


async def test_one_prompt_beyond_the_context_refuses_all():
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
    ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
    ({"bad_words": ["a" * 1000] * 5}, "bad_words"),
    ({"best_of": 2, "stream": True}, "best_of"),
    ({"prompt": [5], "suffix": "end"}, "suffix"),
    ({"prompt": [[5]], "suffix": "end"}, "suffix"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
async def test_invalid_request_is_refused_by_field(fields, param):
    with pytest.raises(InvalidRequest) as refused:
        await prepare(FakeModel(), **fields)

    assert param == refused.value.param


async def test_best_of_equal_to_n_has_no_effect():
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
async def test_field_without_a_tensor_is_refused(fields, unsupported, param):
    """The error uses the request's name of the field."""
    model = FakeModel(unsupported=frozenset({unsupported}), max_model_len=99)

    with pytest.raises(InvalidRequest) as refused:
        await prepare(model, **fields)

    assert (param, "unsupported_parameter") == (refused.value.param, refused.value.code)


async def test_max_tokens_of_minus_one_may_fill_the_context():
    answer = await prepare(FakeModel(max_model_len=10), prompt=["a", "abc"], max_tokens=-1)

    assert [each.sampling_params.max_tokens for each in answer.requests] == [9, 7]


async def test_max_tokens_of_zero_returns_prompt_logprobs_only():
    """Evaluation harnesses send such requests."""
    answer = await prepare(FakeModel(), max_tokens=0, echo=True, logprobs=1)

    params = answer.requests[0].sampling_params
    assert (params.max_tokens, params.logprobs, params.prompt_logprobs) == (0, 1, 1)


@pytest.mark.parametrize("prompt", [None, ""])
async def test_missing_prompt_starts_a_document(prompt):
    """The prompt is the token that precedes a document."""
    answer = await prepare(FakeModel(), prompt=prompt)

    assert answer.requests[0].prompt_token_ids == [2]


async def test_missing_prompt_is_refused_without_a_start_token():
    with pytest.raises(InvalidRequest) as refused:
        await prepare(FakeModel(document_start=None), prompt="")

    assert (refused.value.param, refused.value.code) == ("prompt", "empty_string")


async def test_model_without_a_tokenizer_reads_the_prompt_as_it_is():
    """Echo works, and token ids pass; what needs a tokenizer is rejected by name."""
    model = FakeModel()
    model.prompts = None

    answer = await prepare(model, prompt=["say hi", "and bye"], echo=True)
    assert [each.prompt for each in answer.requests] == ["say hi", "and bye"]
    assert [each.prompt_token_ids for each in answer.requests] == [None, None]
    assert answer.echo == ["say hi", "and bye"]
    assert (await prepare(model, prompt=[1, 2])).requests[0].prompt_token_ids == [1, 2]

    refused: dict[str, dict[str, Any]] = {
        "suffix": {"prompt": "a", "suffix": "b"},
        "add_special_tokens": {"prompt": "a", "add_special_tokens": False},
        "truncate_prompt_tokens": {"prompt": "a", "truncate_prompt_tokens": 1},
        "prompt": {"prompt": ""},
    }
    for param, fields in refused.items():
        with pytest.raises(InvalidRequest) as error:
            await prepare(model, **fields)
        assert error.value.param == param


async def test_suffix_uses_the_fill_in_the_middle_format_of_the_family():
    answer = await prepare(FakeModel(), prompt="a", suffix="b", echo=True)

    assert answer.requests[0].prompt == "a_b"
    assert answer.echo == ["a"]


async def test_echo_returns_the_truncated_prompt():
    """It shows what the model read."""
    model = FakeModel(max_model_len=99)

    answer = await prepare(model, prompt="abcd", echo=True, truncate_prompt_tokens=2)

    assert answer.echo == ["cd"]


async def test_tokenization_yields_between_prompts():
    """Other tasks can use the event loop between two prompts."""
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


async def test_echo_decodes_token_ids():
    answer = await prepare(FakeModel(), prompt=[[97], [98]], echo=True)

    assert answer.echo == ["a", "b"]


async def test_echo_of_many_prompts_lets_other_requests_run():
    """2,048 prompts of 500 token ids took 0.9 s of the event loop."""
    turns = 0

    async def count_turns():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def turns_of(**fields):
        before = turns
        await prepare(FakeModel(), prompt=[[97]] * 8, **fields)
        return turns - before

    counting = asyncio.create_task(count_turns())
    without, with_echo = await turns_of(), await turns_of(echo=True)
    counting.cancel()

    assert with_echo >= without + 8


TRUNCATED = [
    ({"truncate_prompt_tokens": 2}, "cd"),
    ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, "ab"),
    ({"truncate_prompt_tokens": 3}, "bcd"),
    ({"truncate_prompt_tokens": -1}, "bcd"),
]


@pytest.mark.parametrize(("fields", "kept"), TRUNCATED)
@pytest.mark.parametrize("prompt", ["abcd", [97, 98, 99, 100]])
async def test_truncate_prompt_tokens_cuts_the_prompt(prompt, fields, kept):
    """-1 leaves room for the answer in the context."""
    answer = await prepare(FakeModel(max_model_len=19), prompt=prompt, **fields)

    assert "".join(map(chr, answer.requests[0].prompt_token_ids or ())) == kept


def told(logprob: float, text: str = "x") -> CompletionDelta:
    """The only delta of an answer; its one token has this log probability."""
    position = {ord(text): {"logprob": logprob, "rank": 1, "decoded_token": text}}
    return CompletionDelta(text, [ord(text)], "stop", counts=TokenCounts(1, 1), logprobs=[position])


async def test_best_of_returns_the_n_likeliest_answers():
    """The likeliest comes first. The usage counts every token."""
    model = FakeModel([[told(-3.0, "a")]], answers=[told(-1.0, "b"), told(-2.0, "c")])
    answer = await prepare(model, n=2, best_of=3)

    completion = await complete(answer)

    choices = completion["choices"]
    assert [(choice["index"], choice["text"]) for choice in choices] == [(0, "b"), (1, "c")]
    assert completion["usage"]["completion_tokens"] == 3
    assert [choice["logprobs"] for choice in choices] == [None, None]


async def test_complete_answer_parses_with_openai_python():
    """It has every choice in order."""
    answer = await prepare(FakeModel(), prompt=["a", "b"], echo=True)

    completion = await complete(answer)

    read = openai.types.Completion.model_validate_json(orjson.dumps(completion))
    assert [(choice.index, choice.text, choice.finish_reason) for choice in read.choices] == [
        (0, "aHello", "stop"),
        (1, "bHello", "stop"),
    ]
    assert (answer.id, "text_completion") == (read.id, read.object)


async def test_prompts_share_one_length_limit():
    """The server does not tokenize the prompts beyond it."""
    completions = Completions(
        InferenceLimits(max_prompt_tokens=5),
        FieldPolicy("reject"),
        admission(),
    )
    model: Any = FakeModel()
    fits = CompletionRequest(model="m", prompt=["ab", "abc"])
    longer = CompletionRequest(model="m", prompt=["abc", "abc", ""])

    assert len((await completions.build_job(fits, model)).requests) == 2
    for read in (completions.prepare, completions.build_job):
        with pytest.raises(InvalidRequest) as refused:
            await read(longer, model)
        assert (refused.value.param, refused.value.code) == ("prompt", "max_tokens_per_request")


async def test_full_queue_refuses_before_tokenizing():
    completions = Completions(
        InferenceLimits(), FieldPolicy("reject"), Admission(limiter := ConcurrencyLimiter(1))
    )
    model: Any = FakeModel()
    await limiter.slots_for(model).acquire(1)
    model.tokenize = None

    with pytest.raises(QueueFull):
        await completions.prepare(CompletionRequest(model="m", prompt="a"), model)
