"""One model, from prompt to deltas, over the real core and the mock engine."""

import asyncio
import dataclasses
import time
from contextlib import aclosing
from pathlib import Path

import pytest

from openai_frontend.errors import InferenceFailed, InvalidRequest, ModelUnavailable
from openai_frontend.generation import GenerationRequest, SamplingParams, TokenCounts
from openai_frontend.models.served_model import ServedModel
from openai_frontend.triton import _core
from tests import mock_models
from tests.mock_models import serving

REQUEST = GenerationRequest(request_id="r", prompt_token_ids=[1, 2, 3], stream=True)
USER = {"role": "user", "content": "Hello"}


async def test_the_deltas_of_a_stream_are_the_answer(tmp_path: Path) -> None:
    """Their texts joined are what the engine said."""

    mock_models.write(tmp_path, "m", tokens=["a", "b"], answer_tokens=4)
    async with serving(tmp_path) as registry:
        bursts = [burst async for burst in registry.get("m").generate(REQUEST)]
    assert "".join(delta.text for burst in bursts for delta in burst) == "abab"


async def test_the_last_delta_ends_and_counts_the_answer(tmp_path: Path) -> None:
    """Finish reason and counts stand on the last delta."""

    mock_models.write(tmp_path, "m", answer_tokens=4)
    async with serving(tmp_path) as registry:
        bursts = [burst async for burst in registry.get("m").generate(REQUEST)]
    last = bursts[-1][-1]
    assert (last.finish_reason, last.counts) == ("stop", TokenCounts(3, 4, 0))


async def test_max_tokens_reaches_the_engine(tmp_path: Path) -> None:
    """The sampling parameters arrive: an answer that is cut says so."""

    mock_models.write(tmp_path, "m")
    request = GenerationRequest(
        request_id="r", prompt_token_ids=[1], sampling_params=SamplingParams(max_tokens=2)
    )
    async with serving(tmp_path) as registry:
        [[delta]] = [burst async for burst in registry.get("m").generate(request)]
    assert (delta.text, delta.finish_reason) == (" token token", "length")


async def test_token_ids_come_where_they_are_wanted(tmp_path: Path) -> None:
    """A request that asks for ids gets the ids of each delta's tokens."""

    mock_models.write(tmp_path, "m", tokens=["a", "b"], answer_tokens=3)
    request = GenerationRequest(
        request_id="r", prompt_token_ids=[1], stream=True, return_token_ids=True
    )
    async with serving(tmp_path) as registry:
        bursts = [burst async for burst in registry.get("m").generate(request)]
    assert [id for burst in bursts for delta in burst for id in delta.token_ids] == [0, 1, 0]


async def test_closing_the_generator_ends_the_request(tmp_path: Path) -> None:
    """Who stops listening stops the engine: no request stays in the core."""

    mock_models.write(tmp_path, "m", tokens_per_second=20)
    async with serving(tmp_path) as registry:
        async with aclosing(registry.get("m").generate(REQUEST)) as bursts:
            await anext(bursts)
        deadline = time.monotonic() + 5
        while _core.live_counts()["requests"] and time.monotonic() < deadline:  # noqa: ASYNC110  no event
            await asyncio.sleep(0.01)
        assert _core.live_counts()["requests"] == 0


async def test_a_failure_comes_after_the_deltas_before_it(tmp_path: Path) -> None:
    """What the engine said before it failed is not lost."""

    mock_models.write(tmp_path, "m", tokens=["a"], fail_after_tokens=2)
    seen: list[str] = []

    async def listen(model: ServedModel) -> None:
        async for burst in model.generate(REQUEST):
            seen.extend(delta.text for delta in burst)

    async with serving(tmp_path) as registry:
        with pytest.raises(InferenceFailed):
            await listen(registry.get("m"))
    assert "".join(seen) == "aa"


async def test_a_chat_is_rendered_and_tokenized(tmp_path: Path) -> None:
    """The model's own template and tokenizer make the prompt."""

    mock_models.write_with_tokenizer(tmp_path, "m")
    async with serving(tmp_path) as registry:
        prompt = await registry.get("m").render_chat([USER])
    assert prompt.text == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


async def test_a_raw_prompt_is_tokenized(tmp_path: Path) -> None:
    """The tokenizer's own BOS stands before the text's tokens."""

    mock_models.write_with_tokenizer(tmp_path, "m")
    async with serving(tmp_path) as registry:
        model = registry.get("m")
        empty, prompt = await model.tokenize(""), await model.tokenize("!")
    assert (len(empty.token_ids), len(prompt.token_ids)) == (1, 2)


async def test_a_model_without_tokenizer_cannot_chat(tmp_path: Path) -> None:
    """It is listed and takes token ids, but messages it cannot take."""

    mock_models.write(tmp_path, "m")
    async with serving(tmp_path) as registry:
        with pytest.raises(ModelUnavailable, match="'m' has no tokenizer"):
            await registry.get("m").render_chat([USER])


async def test_a_model_that_generates_no_text_refuses(tmp_path: Path) -> None:
    """A model of other tensors is no model for completions."""

    mock_models.write(tmp_path, "m")
    async with serving(tmp_path) as registry:
        model = dataclasses.replace(registry.get("m"), contract=None)
        with pytest.raises(InvalidRequest, match="does not generate text") as refused:
            await anext(model.generate(REQUEST))
    assert refused.value.param == "model"


async def test_tokens_and_texts_come_from_the_models_tokenizer(tmp_path: Path) -> None:
    """There and back, with the special tokens or without."""

    mock_models.write_with_tokenizer(tmp_path, "m")
    async with serving(tmp_path) as registry:
        model = registry.get("m")
        prompt = await model.tokenize("Hello!")
        texts = [
            model.detokenize(prompt.token_ids, skip_special_tokens=skip) for skip in (True, False)
        ]
        whole = await model.decode(prompt.token_ids)
    assert [*texts, whole] == ["Hello!", "<|endoftext|>Hello!", "<|endoftext|>Hello!"]


async def test_a_tokens_bytes_are_known(tmp_path: Path) -> None:
    """Joined they are the text, whichever token holds which part of a character."""

    mock_models.write_with_tokenizer(tmp_path, "m")
    async with serving(tmp_path) as registry:
        model = registry.get("m")
        prompt = await model.tokenize("\U0001f600", add_special_tokens=False)
        joined = b"".join(model.token_bytes(each) or b"" for each in prompt.token_ids)
    assert joined == "\U0001f600".encode()


async def test_a_model_without_tokenizer_has_no_bytes_and_no_template(tmp_path: Path) -> None:
    """Who asks gets no answer, and no error: logprobs are told without bytes."""

    mock_models.write(tmp_path, "m")
    async with serving(tmp_path) as registry:
        model = registry.get("m")
        assert (model.token_bytes(1), model.template_knows("tools")) == (None, False)


async def test_a_pair_of_texts_becomes_one_sequence(tmp_path: Path) -> None:
    """Both are in it, in their order, with the special tokens."""

    mock_models.write_with_tokenizer(tmp_path, "m")
    async with serving(tmp_path) as registry:
        model = registry.get("m")
        token_ids, type_ids = await model.tokenize_pair("Hello", "you?")
        text = await model.decode(token_ids)
    assert (text, len(type_ids)) == ("<|endoftext|>Helloyou?", len(token_ids))


async def test_a_suffix_is_refused_by_a_model_that_fills_no_gaps(tmp_path: Path) -> None:
    """Its vocabulary says so."""

    mock_models.write_with_tokenizer(tmp_path, "m")
    async with serving(tmp_path) as registry:
        with pytest.raises(InvalidRequest) as refused:
            registry.get("m").fill_in_the_middle("a", "b")
    assert refused.value.param == "suffix"


async def test_a_stop_text_ends_a_model_that_knows_of_none(tmp_path: Path) -> None:
    """The gateway cuts the answer, and the request ends in the core before the model is through."""

    mock_models.write(tmp_path, "m", tokens=["a", "b", "c"], tokens_per_second=50)
    (tmp_path / "m" / "openai_frontend.yaml").write_text("contract: python")
    request = GenerationRequest(
        request_id="r", prompt="hi", sampling_params=SamplingParams(stop=["bc"]), stream=True
    )
    async with serving(tmp_path) as registry:
        begun = time.monotonic()
        bursts = [burst async for burst in registry.get("m").generate(request)]
        assert time.monotonic() - begun < 5  # its 4096 tokens would take 80 s
        deadline = time.monotonic() + 5
        while _core.live_counts()["requests"] and time.monotonic() < deadline:  # noqa: ASYNC110  no event
            await asyncio.sleep(0.01)
        assert _core.live_counts()["requests"] == 0
    deltas = [delta for burst in bursts for delta in burst]
    assert "".join(delta.text for delta in deltas) == "a"
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", "bc")
