"""Several sequences of one request to the model, as in a beam search, become choices."""

from contextlib import aclosing
from typing import Any

import numpy as np
import orjson
import pytest

from openai_frontend.generation import SequenceDelta, TokenCounts
from openai_frontend.serving.dialects import chat, completions
from schemas.chat_completions import ChatCompletionRequest
from schemas.completions import CompletionRequest
from tests.fast.serving.fake_model import FakeModel, last
from tests.fast.serving.test_contract_fields import CHATS, COMPLETIONS


def sequence(at: int, text: str) -> SequenceDelta:
    return SequenceDelta(text, finish_reason="stop", counts=TokenCounts(2, len(text)), sequence=at)


honours = pytest.mark.honours
BEAMS = ([sequence(0, "one"), sequence(1, "two!")],)


async def answer_of(model: FakeModel, **fields: Any) -> Any:
    body = {"model": "fake", "prompt": "ab", "use_beam_search": True, "n": 2, **fields}
    request = CompletionRequest.model_validate(body)
    return await COMPLETIONS.prepare(request, model)  # type: ignore[arg-type]


@honours("completions.use_beam_search")
async def test_one_request_per_prompt_gives_all_its_choices() -> None:
    """The usage counts the prompt once and each answer."""

    model = FakeModel(BEAMS)
    whole = await completions.complete(await answer_of(model, prompt=["a", "b"]))

    (first, second) = model.requests
    assert (first.prompt, second.prompt) == ("a", "b")
    assert (first.sequences, first.sampling_params.beam_width) == (2, 2)
    assert [choice["text"] for choice in whole["choices"]] == ["one", "two!"] * 2
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (4, 14)


async def test_best_of_sets_the_beam_width() -> None:
    """The model returns the best sequence first."""

    model = FakeModel(BEAMS)
    whole = await completions.complete(await answer_of(model, best_of=5))

    assert model.requests[0].sampling_params.beam_width == 5
    assert [choice["text"] for choice in whole["choices"]] == ["one", "two!"]


async def test_stream_sends_each_choice_when_it_ends() -> None:
    """Each has one chunk of text, then its finish reason."""

    answer = await answer_of(FakeModel(BEAMS), stream=True)
    stream = completions.chunks(answer)
    frames = [stream.start()]
    async with aclosing(answer.bursts()) as bursts:
        async for burst in bursts:
            frames += [stream.feed(choice, deltas) for choice, deltas in burst]
    frames.append(stream.finish())

    events = b"".join(frames).decode().split("\n\n")
    chunks = [orjson.loads(event.removeprefix("data: ")) for event in events if "{" in event]
    texts = {choice["index"]: choice["text"] for each in chunks for choice in each["choices"]
             if choice["text"]}  # fmt: skip
    assert texts == {0: "one", 1: "two!"}


@honours("chat.use_beam_search")
async def test_chat_supports_use_beam_search() -> None:
    request = ChatCompletionRequest.model_validate(
        {"model": "fake", "messages": [{"role": "user", "content": "a"}], "n": 2}
        | {"use_beam_search": True}
    )
    answer = await CHATS.prepare(request, FakeModel(BEAMS))  # type: ignore[arg-type]
    whole = await chat.complete(answer)
    assert [choice["message"]["content"] for choice in whole["choices"]] == ["one", "two!"]


async def test_beam_search_of_a_chat_with_prompt_logprobs_is_one_request() -> None:
    """All choices read it, and it asks for the log probabilities."""
    request = ChatCompletionRequest.model_validate(
        {"model": "fake", "messages": [{"role": "user", "content": "a"}], "n": 2}
        | {"use_beam_search": True, "prompt_logprobs": 1}
    )
    answer = await CHATS.prepare(request, FakeModel(BEAMS))  # type: ignore[arg-type]

    first, second = answer.requests
    assert first is second
    assert (first.sequences, first.sampling_params.prompt_logprobs) == (2, 1)


async def test_requested_metrics_and_tensors_are_in_the_answer() -> None:
    """The usage has one mapping of metrics for each choice; a choice has its tensors."""

    logits = np.frombuffer(b"\0\1", dtype="u1")
    counts = TokenCounts(
        3, 2, metrics={"kv_cache_reused_blocks": 5}, logits={"context_logits": logits}
    )
    end = last("x")
    end.counts = counts
    body = {"model": "fake", "prompt": "a", "vllm_xargs": {"return_perf_metrics": True}}
    request = CompletionRequest.model_validate(body)
    answer = await COMPLETIONS.prepare(request, FakeModel([[end]]))  # type: ignore[arg-type]
    whole = await completions.complete(answer)
    assert whole["usage"]["performance_metrics"] == [{"kv_cache_reused_blocks": 5}]
    told = {"datatype": logits.dtype, "shape": [2], "data": "AAE="}
    assert whole["choices"][0]["context_logits"] == told


async def test_unrequested_metrics_are_not_in_the_usage() -> None:
    request = CompletionRequest.model_validate({"model": "fake", "prompt": "a"})
    answer = await COMPLETIONS.prepare(request, FakeModel([[last("x")]]))  # type: ignore[arg-type]
    assert "performance_metrics" not in (await completions.complete(answer))["usage"]


@honours("chat.length_penalty")
@honours("completions.length_penalty")
async def test_length_penalty_reaches_the_model() -> None:
    model = FakeModel(BEAMS)
    await completions.complete(await answer_of(model, length_penalty=2.0))
    body = {"model": "fake", "messages": [{"role": "user", "content": "a"}], "length_penalty": 0.5}
    request = ChatCompletionRequest.model_validate(body)
    answer = await CHATS.prepare(request, FakeModel())  # type: ignore[arg-type]
    penalties = [
        each.sampling_params.length_penalty for each in (*model.requests, *answer.requests)
    ]
    assert penalties == [2.0, 0.5]
