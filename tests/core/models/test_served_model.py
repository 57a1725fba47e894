"""One model from prompt to deltas, with the real core and the mock engine."""

import asyncio
import dataclasses
import itertools
import time
from contextlib import aclosing
from pathlib import Path

import pytest

from openai_frontend.contracts.select import SelectedContracts
from openai_frontend.errors import InferenceFailed, InvalidRequest
from openai_frontend.generation import GenerationRequest, SamplingParams, TokenCounts
from openai_frontend.models.served_model import ServedModel
from openai_frontend.triton import _core
from tests import mock_models
from tests.mock_models import serving

REQUEST = GenerationRequest(request_id="r", prompt_token_ids=[1, 2, 3], stream=True)
USER = {"role": "user", "content": "Hello"}


async def test_deltas_join_to_the_completion(tmp_path: Path) -> None:
    """Their texts joined are the engine's output."""

    mock_models.write(tmp_path, "m", tokens=["a", "b"], answer_tokens=4)
    async with serving(tmp_path) as registry:
        bursts = [burst async for burst in registry.get("m").generate(REQUEST)]
    assert "".join(delta.text for burst in bursts for delta in burst) == "abab"


async def test_last_delta(tmp_path: Path) -> None:
    """It has the finish reason and the token counts."""

    mock_models.write(tmp_path, "m", answer_tokens=4)
    async with serving(tmp_path) as registry:
        bursts = [burst async for burst in registry.get("m").generate(REQUEST)]
    last = bursts[-1][-1]
    assert (last.finish_reason, last.counts) == ("stop", TokenCounts(3, 4, 0))


async def test_max_tokens_reaches_the_engine(tmp_path: Path) -> None:
    """A truncated completion ends with `length`."""

    mock_models.write(tmp_path, "m")
    request = GenerationRequest(
        request_id="r", prompt_token_ids=[1], sampling_params=SamplingParams(max_tokens=2)
    )
    async with serving(tmp_path) as registry:
        [[delta]] = [burst async for burst in registry.get("m").generate(request)]
    assert (delta.text, delta.finish_reason) == (" token token", "length")


async def test_token_ids(tmp_path: Path) -> None:
    """Each delta has the ids of its tokens if the request asks for them."""

    mock_models.write(tmp_path, "m", tokens=["a", "b"], answer_tokens=3)
    request = GenerationRequest(
        request_id="r", prompt_token_ids=[1], stream=True, return_token_ids=True
    )
    async with serving(tmp_path) as registry:
        bursts = [burst async for burst in registry.get("m").generate(request)]
    assert [id for burst in bursts for delta in burst for id in delta.token_ids] == [0, 1, 0]


async def test_closing_the_generator_cancels_the_request(tmp_path: Path) -> None:
    """No request stays in the core."""

    mock_models.write(tmp_path, "m", tokens_per_second=20)
    async with serving(tmp_path) as registry:
        async with aclosing(registry.get("m").generate(REQUEST)) as bursts:
            await anext(bursts)
        deadline = time.monotonic() + 30
        while _core.live_counts()["requests"] and time.monotonic() < deadline:  # noqa: ASYNC110  no event
            await asyncio.sleep(0.01)
        assert _core.live_counts()["requests"] == 0


async def test_failure_after_deltas(tmp_path: Path) -> None:
    """Output before a failure is not lost."""

    mock_models.write(tmp_path, "m", tokens=["a"], fail_after_tokens=2)
    seen: list[str] = []

    async def listen(model: ServedModel) -> None:
        async for burst in model.generate(REQUEST):
            seen.extend(delta.text for delta in burst)

    async with serving(tmp_path) as registry:
        with pytest.raises(InferenceFailed):
            await listen(registry.get("m"))
    assert "".join(seen) == "aa"


async def test_render_chat(tmp_path: Path) -> None:
    """With the model's own template and tokenizer."""

    mock_models.write_with_tokenizer(tmp_path, "m")
    async with serving(tmp_path) as registry:
        prompt = await registry.get("m").render_chat([USER])
    assert prompt.text == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


async def test_tokenize(tmp_path: Path) -> None:
    """The tokenizer adds its BOS token."""

    mock_models.write_with_tokenizer(tmp_path, "m")
    async with serving(tmp_path) as registry:
        model = registry.get("m")
        empty, prompt = await model.tokenize(""), await model.tokenize("!")
    assert (len(empty.token_ids), len(prompt.token_ids)) == (1, 2)


async def test_no_tokenizer(tmp_path: Path) -> None:
    """The model is listed and accepts token ids, but no messages."""

    mock_models.write(tmp_path, "m")
    async with serving(tmp_path) as registry:
        with pytest.raises(InvalidRequest, match="'m' has no tokenizer") as refused:
            await registry.get("m").render_chat([USER])

    assert (refused.value.param, refused.value.code) == ("model", "unsupported_model")


async def test_no_text_generation(tmp_path: Path) -> None:
    """A model with other tensors rejects completions."""

    mock_models.write(tmp_path, "m")
    async with serving(tmp_path) as registry:
        model = dataclasses.replace(
            registry.get("m"), contracts=SelectedContracts(name="none", reason="A test.")
        )
        with pytest.raises(InvalidRequest, match="does not generate text") as refused:
            await anext(model.generate(REQUEST))
    assert refused.value.param == "model"


async def test_tokenize_and_detokenize(tmp_path: Path) -> None:
    """A round trip with and without special tokens."""

    mock_models.write_with_tokenizer(tmp_path, "m")
    async with serving(tmp_path) as registry:
        model = registry.get("m")
        prompt = await model.tokenize("Hello!")
        texts = [
            model.detokenize(prompt.token_ids, skip_special_tokens=skip) for skip in (True, False)
        ]
        whole = await model.decode(prompt.token_ids)
    assert [*texts, whole] == ["Hello!", "<|endoftext|>Hello!", "<|endoftext|>Hello!"]


async def test_token_bytes(tmp_path: Path) -> None:
    """Joined they are the text, even if tokens end within characters."""

    mock_models.write_with_tokenizer(tmp_path, "m")
    async with serving(tmp_path) as registry:
        model = registry.get("m")
        prompt = await model.tokenize("\U0001f600", add_special_tokens=False)
        joined = b"".join(model.token_bytes(each) or b"" for each in prompt.token_ids)
    assert joined == "\U0001f600".encode()


async def test_no_tokenizer_no_token_bytes(tmp_path: Path) -> None:
    """None instead of an error: log probabilities have no bytes."""

    mock_models.write(tmp_path, "m")
    async with serving(tmp_path) as registry:
        model = registry.get("m")
        assert (model.token_bytes(1), model.template_knows("tools")) == (None, False)


async def test_tokenize_pair(tmp_path: Path) -> None:
    """Both texts in order, with special tokens."""

    mock_models.write_with_tokenizer(tmp_path, "m")
    async with serving(tmp_path) as registry:
        model = registry.get("m")
        token_ids, type_ids = await model.tokenize_pair("Hello", "you?")
        text = await model.decode(token_ids)
    assert (text, len(type_ids)) == ("<|endoftext|>Helloyou?", len(token_ids))


async def test_suffix_without_fill_in_the_middle(tmp_path: Path) -> None:
    """Its vocabulary has no such tokens."""

    mock_models.write_with_tokenizer(tmp_path, "m")
    async with serving(tmp_path) as registry:
        with pytest.raises(InvalidRequest) as refused:
            registry.get("m").fill_in_the_middle("a", "b")
    assert refused.value.param == "suffix"


async def test_derived_stop_strings(tmp_path: Path) -> None:
    """The gateway cuts the completion and cancels the request in the core."""

    mock_models.write(tmp_path, "m", tokens=["a", "b", "c"], tokens_per_second=50)
    (tmp_path / "m" / "openai_frontend.yaml").write_text("contract: python")
    request = GenerationRequest(
        request_id="r", prompt="hi", sampling_params=SamplingParams(stop=["bc"]), stream=True
    )
    async with serving(tmp_path) as registry:
        begun = time.monotonic()
        bursts = [burst async for burst in registry.get("m").generate(request)]
        assert time.monotonic() - begun < 30  # its 4096 tokens would take 80 s
        deadline = time.monotonic() + 30
        while _core.live_counts()["requests"] and time.monotonic() < deadline:  # noqa: ASYNC110  no event
            await asyncio.sleep(0.01)
        assert _core.live_counts()["requests"] == 0
    deltas = [delta for burst in bursts for delta in burst]
    assert "".join(delta.text for delta in deltas) == "a"
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", "bc")


async def test_only_requests_with_the_same_owner_and_salt_share_the_prefix_cache(
    tmp_path: Path,
) -> None:
    """The owner's own requests, and those of all other clients, with or without API keys."""
    mock_models.write_with_tokenizer(tmp_path, "m", prefix_cache_blocks=100)
    prompts = itertools.product((None, "alice", "bob"), (None, "x"))
    cached = []
    async with serving(tmp_path) as registry:
        model = registry.get("m")
        for owner, salt in [*prompts, ("alice", None), (None, "x"), (None, None)]:
            own = dataclasses.replace(
                REQUEST, prompt_token_ids=[1] * 100, cache_owner=owner, cache_salt=salt
            )
            bursts = [burst async for burst in model.generate(own)]
            counts = bursts[-1][-1].counts
            assert counts is not None
            cached.append(counts.cached_tokens)

    assert [each > 0 for each in cached] == [False] * 6 + [True] * 3
