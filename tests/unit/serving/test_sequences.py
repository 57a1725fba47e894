"""Several answers of one request to the model, as a beam search gives them, become choices."""

from contextlib import aclosing
from typing import Any

import numpy as np
import orjson
import pytest

from openai_frontend.generation import SequenceDelta, TokenCounts
from openai_frontend.serving import chat, completions
from schemas.chat_completions import ChatCompletionRequest
from schemas.completions import CompletionRequest
from tests.unit.serving.fake_model import FakeModel, last
from tests.unit.serving.test_contract_fields import CHATS, COMPLETIONS


def sequence(at: int, text: str) -> SequenceDelta:
    return SequenceDelta(text, finish_reason="stop", counts=TokenCounts(2, len(text)), sequence=at)


honours = pytest.mark.honours
BEAMS = ([sequence(0, "one"), sequence(1, "two!")],)


async def answer_of(model: FakeModel, **fields: Any) -> Any:
    body = {"model": "fake", "prompt": "ab", "use_beam_search": True, "n": 2, **fields}
    request = CompletionRequest.model_validate(body)
    return await COMPLETIONS.prepare(request, model)  # type: ignore[arg-type]


@honours("completions.use_beam_search")
async def test_one_request_gives_all_choices() -> None:
    """The model is asked once for each prompt; a prompt counts once, the answers count each."""

    model = FakeModel(BEAMS)
    whole = await completions.complete(await answer_of(model, prompt=["a", "b"]))

    (first, second) = model.requests
    assert (first.prompt, second.prompt) == ("a", "b")
    assert (first.sequences, first.sampling_params.beam_width) == (2, 2)
    assert [choice["text"] for choice in whole["choices"]] == ["one", "two!"] * 2
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (4, 14)


async def test_more_may_be_followed_than_are_told() -> None:
    """`best_of` is the width of the search; the model tells the best first."""

    model = FakeModel(BEAMS)
    whole = await completions.complete(await answer_of(model, best_of=5))

    assert model.requests[0].sampling_params.beam_width == 5
    assert [choice["text"] for choice in whole["choices"]] == ["one", "two!"]


async def test_a_stream_has_each_choice_at_its_end() -> None:
    """One chunk of text for each, then its finish reason."""

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
async def test_a_chat_has_them_too() -> None:
    """With the same field."""

    request = ChatCompletionRequest.model_validate(
        {"model": "fake", "messages": [{"role": "user", "content": "a"}], "n": 2}
        | {"use_beam_search": True}
    )
    answer = await CHATS.prepare(request, FakeModel(BEAMS))  # type: ignore[arg-type]
    whole = await chat.complete(answer)
    assert [choice["message"]["content"] for choice in whole["choices"]] == ["one", "two!"]


async def test_what_is_asked_for_by_name_is_told() -> None:
    """Metrics in the usage, one mapping for each choice; tensors in the choice."""

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


async def test_nobody_is_told_what_was_not_asked_for() -> None:
    """Usage is OpenAI's alone."""

    request = CompletionRequest.model_validate({"model": "fake", "prompt": "a"})
    answer = await COMPLETIONS.prepare(request, FakeModel([[last("x")]]))  # type: ignore[arg-type]
    assert "performance_metrics" not in (await completions.complete(answer))["usage"]


@honours("chat.length_penalty")
@honours("completions.length_penalty")
async def test_the_search_may_prefer_long_answers() -> None:
    """The model is told by how much."""

    model = FakeModel(BEAMS)
    await completions.complete(await answer_of(model, length_penalty=2.0))
    body = {"model": "fake", "messages": [{"role": "user", "content": "a"}], "length_penalty": 0.5}
    request = ChatCompletionRequest.model_validate(body)
    answer = await CHATS.prepare(request, FakeModel())  # type: ignore[arg-type]
    penalties = [
        each.sampling_params.length_penalty for each in (*model.requests, *answer.requests)
    ]
    assert penalties == [2.0, 0.5]
