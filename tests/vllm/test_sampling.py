"""The effect of each sampling parameter on vLLM's answer, in the step loop and through AsyncLLM."""

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from openai_frontend import errors
from openai_frontend.engines.vllm import versions
from openai_frontend.generation import CompletionDelta, StructuredOutputs, TokenLogprobs
from openai_frontend.triton import Server
from tests.vllm.conftest import needs_step_loop
from tests.vllm.requests import answer, completion_tokens

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

both = pytest.mark.parametrize("model", ["demo", "demo-async-llm"])
streamed = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])

QUESTION = "<|im_start|>user\nWhat is Triton?<|im_end|>\n<|im_start|>assistant\n"
PROMPT_IDS = list(range(100, 140))
Parameters = Callable[[CompletionDelta], dict[str, Any]]
Effect = Callable[[CompletionDelta, CompletionDelta], bool]


def told(logprobs: Sequence[TokenLogprobs | None] | None) -> list[TokenLogprobs]:
    """Return one mapping for each token; it is empty for the first prompt token."""
    assert logprobs is not None
    return [entry or {} for entry in logprobs]


async def first_token(server: Server, model: str) -> int:
    """Return the id of the first token of a greedy answer."""
    result = await answer(server, model, QUESTION, max_tokens=1, return_token_ids=True)
    return result.token_ids[0]


# Parameters for a given usual answer, and what is true of the two answers
EFFECTS: dict[str, tuple[Parameters, Effect]] = {
    "a bias against a token and for another": (
        lambda usual: {"logit_bias": {usual.token_ids[0]: -100.0, 7: 100.0}, "max_tokens": 1},
        lambda usual, result: result.token_ids == [7],
    ),
    "allowed tokens": (
        lambda usual: {"allowed_token_ids": [40, 41], "max_tokens": 8, "ignore_eos": True},
        lambda usual, result: set(result.token_ids) <= {40, 41},
    ),
    "a bad word": (
        lambda usual: {"bad_words": [usual.text.split()[1]]},
        lambda usual, result: usual.text.split()[1] not in result.text.split(),
    ),
    "a stop string in the text": (
        lambda usual: {"stop": [usual.text[6:16]], "include_stop_str_in_output": True},
        lambda usual, result: result.text == usual.text[: usual.text.index(usual.text[6:16]) + 10],
    ),
    "special tokens, and the stop token in the text": (
        lambda usual: {"skip_special_tokens": False, "include_stop_str_in_output": True},
        lambda usual, result: result.text == usual.text + "<|im_end|>",
    ),
    "an answer that repeats itself": (
        lambda usual: {
            "logit_bias": {40: 100.0},
            "ignore_eos": True,
            "max_tokens": 100,
            "repetition_detection": {"max_pattern_size": 2, "min_count": 4},
        },
        lambda usual, result: result.finish_reason == "stop" and completion_tokens(result) < 100,
    ),
}


@both
@streamed
@pytest.mark.parametrize(("parameters", "effect"), EFFECTS.values(), ids=EFFECTS)
async def test_effect(server: Server, model: str, stream: bool, parameters, effect):
    """Each parameter changes the usual answer in its own way."""
    asked = {"return_token_ids": True, "stream": stream}
    usual = await answer(server, model, QUESTION, **asked)

    result = await answer(server, model, QUESTION, **asked, **parameters(usual))

    assert effect(usual, result), result


@pytest.mark.parametrize(
    ("model", "prompt"),
    [
        ("demo", QUESTION),
        pytest.param("demo", PROMPT_IDS, marks=needs_step_loop),
        ("demo-async-llm", QUESTION),
    ],
    ids=["step loop, text", "step loop, ids", "AsyncLLM, text"],
)
async def test_bad_words_do_not_block_the_event_loop(
    server: Server, monkeypatch, model: str, prompt
):
    """Many words take long to tokenize, which happens on other threads."""
    from vllm import SamplingParams

    if model == "demo-async-llm" and versions.installed().minor_version < (0, 27):
        pytest.skip("vLLM's own client tokenizes them on the event loop before 0.27")

    threads = []
    tokenize = SamplingParams.update_from_tokenizer

    def recording(params: Any, tokenizer: Any) -> None:
        threads.append(threading.get_ident())
        tokenize(params, tokenizer)

    monkeypatch.setattr(SamplingParams, "update_from_tokenizer", recording)
    await answer(server, model, prompt, bad_words=["x"], max_tokens=1)

    assert threads
    assert threading.get_ident() not in threads


@both
@pytest.mark.parametrize("seed", [-1, -(2**63), 0, 7, 2**63 - 1])
async def test_any_seed_is_deterministic(server: Server, model: str, seed: int):
    """Two answers at a high temperature are equal for one seed, also for -1, which vLLM alone
    treats as no seed.
    """
    first, second = [
        await answer(server, model, QUESTION, seed=seed, temperature=2.0, max_tokens=12)
        for _ in range(2)
    ]

    assert first.text == second.text


async def test_different_seeds_give_different_answers(server: Server):
    """The answers are generated at a high temperature."""
    texts = {
        (await answer(server, "demo", QUESTION, seed=seed, temperature=2.0, max_tokens=12)).text
        for seed in (-1, 0, 1)
    }

    assert len(texts) == 3


STRUCTURED = {
    "choice": (StructuredOutputs(choice=["yes", "no"]), lambda text: text in ("yes", "no")),
    "regex": (StructuredOutputs(regex="[0-9]{3}"), lambda text: len(text) == 3 and text.isdigit()),
    "grammar": (StructuredOutputs(grammar='root ::= "a" "b"'), lambda text: text == "ab"),
    "json": (
        StructuredOutputs(json={"enum": [{"ok": True}, {"ok": False}]}),
        lambda text: set(json.loads(text)) == {"ok"},
    ),
    "json object": (
        StructuredOutputs(json_object=True),
        lambda text: text.lstrip().startswith("{"),
    ),
    "json as text": (
        StructuredOutputs(json='{"enum": [1, 2]}'),
        lambda text: json.loads(text) in (1, 2),
    ),
    "structural tag": (
        StructuredOutputs(
            structural_tag=json.dumps(
                {"type": "structural_tag", "format": {"type": "const_string", "value": "tag"}}
            )
        ),
        lambda text: text == "tag",
    ),
}


@both
@pytest.mark.parametrize(("structured", "holds"), STRUCTURED.values(), ids=STRUCTURED)
async def test_structured_outputs(server: Server, model: str, structured, holds):
    """The answer matches the constraint."""
    result = await answer(server, model, QUESTION, structured_outputs=structured, max_tokens=64)

    assert holds(result.text), result.text


@both
@streamed
@pytest.mark.parametrize("logprobs", [0, 20])
async def test_logprobs_match_the_tokens(server: Server, model: str, stream: bool, logprobs: int):
    """Each token of each delta has its own entry, even if a stop string cuts the answer."""
    usual = await answer(server, model, QUESTION)

    result = await answer(
        server,
        model,
        QUESTION,
        stop=[usual.text[6:16]],
        logprobs=logprobs,
        return_token_ids=True,
        stream=stream,
    )

    own = [
        next(iter(entry)) for _, entry in zip(result.token_ids, result.logprobs or (), strict=True)
    ]
    assert own == result.token_ids
    assert {len(entry) for entry in result.logprobs or ()} == {max(logprobs, 1)}


@both
@pytest.mark.parametrize("likeliest", [{}, {"logprobs": 2}])
async def test_logprobs_of_requested_token_ids(
    server: Server, model: str, likeliest: dict[str, int]
):
    """Given ids, their logprobs come with each token's own, and no others."""
    asked = {"logprob_token_ids": [5, 6, 7], **likeliest}
    result = await answer(server, model, QUESTION, max_tokens=3, **asked)

    assert [set(entry) for entry in told(result.logprobs)] == [
        {next(iter(entry)), 5, 6, 7} for entry in told(result.logprobs)
    ]


@both
@streamed
async def test_prompt_logprobs(server: Server, model: str, stream: bool):
    """Each token of the prompt except the first has its own logprob and the most likely
    alternatives.
    """
    result = await answer(server, model, PROMPT_IDS, max_tokens=3, prompt_logprobs=2, stream=stream)

    first, *others = told(result.prompt_logprobs)
    assert not first
    assert [token in entry for token, entry in zip(PROMPT_IDS[1:], others, strict=True)] == [
        True
    ] * (len(PROMPT_IDS) - 1)
    assert all(len(entry) in (2, 3) for entry in others)


@both
async def test_prompt_logprobs_equal_those_of_generation(server: Server, model: str):
    """A greedy answer, sent again as a prompt, has the logprobs it was generated with."""
    made = await answer(
        server, model, PROMPT_IDS, max_tokens=6, ignore_eos=True, logprobs=0, return_token_ids=True
    )
    tokens = list(made.token_ids)

    read = await answer(server, model, PROMPT_IDS + tokens, max_tokens=0, prompt_logprobs=0)

    generated = [
        entry[token]["logprob"] for token, entry in zip(tokens, made.logprobs or (), strict=True)
    ]
    again = [
        entry[token]["logprob"]
        for token, entry in zip(tokens, told(read.prompt_logprobs)[-6:], strict=True)
    ]
    assert again == pytest.approx(generated, abs=1e-3)


@both
@streamed
async def test_max_tokens_0_generates_nothing(server: Server, model: str, stream: bool):
    """The engine processes only the prompt."""
    result = await answer(
        server,
        model,
        PROMPT_IDS,
        max_tokens=0,
        min_tokens=0,
        prompt_logprobs=0,
        logprobs=0,
        return_token_ids=True,
        stream=stream,
    )

    assert (result.text, result.token_ids, result.logprobs) == ("", [], None)
    assert (result.finish_reason, completion_tokens(result)) == ("length", 0)
    assert len(result.prompt_logprobs or ()) == len(PROMPT_IDS)


@both
async def test_max_tokens_0_of_an_answer_that_ends_at_once(server: Server, model: str):
    """Even if the first token ends the text, no token is returned and finish_reason is `length`."""
    usual = await first_token(server, model)

    result = await answer(server, model, QUESTION, max_tokens=0, stop_token_ids=[usual])

    assert (result.finish_reason, result.stop_reason) == ("length", None)


@both
async def test_cache_salt_separates_the_prefix_cache(server: Server, model: str):
    """Requests with the same salt share it, others do not."""
    prompt = list(range(300, 400))
    cached = []
    for salt in ("a", "a", "b", None):
        result = await answer(server, model, prompt, max_tokens=1, cache_salt=salt)
        cached.append(result.counts.cached_tokens)

    assert cached == [0, 96, 0, 0]


@both
async def test_priority_reaches_the_engine(server: Server, model: str):
    """The model schedules by priority, including negative ones."""
    results = await asyncio.gather(
        *(answer(server, model, QUESTION, max_tokens=2, priority=n) for n in (-5, 0, 5))
    )

    assert {result.text for result in results} == {results[0].text}


REFUSED = {
    "a token beyond the vocabulary": ({"logit_bias": {10**6: 1.0}}, "logit_bias"),
    "an allowed one": ({"allowed_token_ids": [10**6]}, "allowed_token_ids"),
    "too many biases": ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, "logit_bias: .*at most"),
    "too many allowed": ({"allowed_token_ids": [5] * 1025}, "allowed_token_ids: .*at most"),
    "too many bad words": ({"bad_words": [f"{n}" * 30 for n in range(10, 70)]}, "bad_words: at"),
    "an empty bad word": ({"bad_words": [""]}, "bad_words"),
    "one of the logprobs": ({"logprob_token_ids": [10**6]}, "logprob_token_ids"),
    "too many logprobs": ({"logprobs": 21}, "logprobs"),
    "too many of the prompt's": ({"prompt_logprobs": 21}, "prompt_logprobs"),
    "a bad grammar": ({"structured_outputs": StructuredOutputs(grammar="root ::= (")}, "EBNF"),
    "a bad regex": ({"structured_outputs": StructuredOutputs(regex="(")}, "unterminated group"),
    "a bad schema": (
        {"structured_outputs": StructuredOutputs(json={"type": "x"})},
        'structured_outputs: Unsupported type "x"',
    ),
    "a bad tag": (
        {"structured_outputs": StructuredOutputs(structural_tag="{}")},
        "structured_outputs: Invalid structural tag error",
    ),
    "whitespace": (
        {"structured_outputs": StructuredOutputs(choice=["a"], disable_any_whitespace=True)},
        "whitespace",
    ),
    "nothing structured": ({"structured_outputs": StructuredOutputs()}, "structured outputs"),
    "thinking": ({"thinking_token_budget": 5}, "thinking_token_budget: .* model.json"),
    "an unknown key": (
        {"repetition_detection": {"max_pattern_size": 2, "min_count": 2, "banana": 1}},
        "repetition_detection.*banana",
    ),
    "an absurd number": ({"max_tokens": 2**80}, "64-bit"),
    "a wrong type": ({"temperature": "hot"}, "sampling_parameters: temperature"),
}


@both
@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
async def test_parameters_that_vllm_refuses_are_invalid_requests(
    server: Server, model: str, options, message
):
    """The message has the reason, and the next request is served."""
    with pytest.raises(errors.InvalidRequest, match=message):
        await answer(server, model, PROMPT_IDS, **options)

    assert completion_tokens(await answer(server, model, QUESTION, max_tokens=1)) == 1
