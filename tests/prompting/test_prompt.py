"""Prompts as text and token ids."""

import asyncio
import dataclasses
import time
from collections.abc import Callable

import pytest

from openai_frontend.errors import ContextLengthExceeded, InvalidRequest
from openai_frontend.prompting.pool import PromptPool
from openai_frontend.prompting.prompt import PromptBuilder
from openai_frontend.prompting.tokenizer import Tokenizer

USER = {"role": "user", "content": "Hello"}


def test_a_chat_gets_no_special_tokens_but_its_templates(tiny: Tokenizer) -> None:
    """The template writes BOS where the model wants it; the tokenizer must not add another."""

    prompt = PromptBuilder(tiny).chat([USER])
    decoded = tiny.fast.decode(prompt.token_ids, skip_special_tokens=False)
    assert decoded == prompt.text


def test_a_completion_gets_the_tokenizers_special_tokens(tiny: Tokenizer) -> None:
    """A raw prompt starts with BOS where the tokenizer adds it."""

    prompt = PromptBuilder(tiny).completion("Hello")
    decoded = tiny.fast.decode(prompt.token_ids, skip_special_tokens=False)
    assert decoded == "<|endoftext|>Hello"


def test_tools_choose_the_tool_template(tiny: Tokenizer) -> None:
    """A tokenizer with a template for tools uses it when tools are given."""

    two = dataclasses.replace(tiny, chat_templates={"default": "plain", "tool_use": "tools"})
    builder = PromptBuilder(two)
    texts = [builder.chat([USER], tools=tools).text for tools in ([], [{"type": "function"}])]
    assert texts == ["plain", "tools"]


def test_a_given_template_replaces_the_models_own(tiny: Tokenizer) -> None:
    """The setting wins over the folder."""

    assert PromptBuilder(tiny, chat_template="mine").chat([USER]).text == "mine"


def test_a_model_without_template_cannot_chat(tiny: Tokenizer) -> None:
    """A base model refuses chats and says why."""

    base = dataclasses.replace(tiny, chat_templates={})
    with pytest.raises(InvalidRequest, match="has no chat template") as refused:
        PromptBuilder(base).chat([USER])
    assert refused.value.param == "model"


def _chat(builder: PromptBuilder) -> object:
    return builder.chat([{"role": "user", "content": "!" * 50}])


def _completion(builder: PromptBuilder) -> object:
    return builder.completion("!" * 50)


@pytest.mark.parametrize(("build", "param"), [(_chat, "messages"), (_completion, "prompt")])
def test_a_prompt_beyond_the_context_is_refused_with_the_numbers(
    tiny: Tokenizer, build: Callable[[PromptBuilder], object], param: str
) -> None:
    """The message names the limit and what was asked."""

    wanted = r"maximum context length is 8 tokens\. However, your \w+ resulted in \d+ tokens"
    with pytest.raises(ContextLengthExceeded, match=wanted) as refused:
        build(PromptBuilder(tiny, max_model_len=8))
    assert refused.value.param == param


async def _worst_lag_s(work: asyncio.Future[object] | asyncio.Task[object]) -> float:
    """The longest time that the loop stood still while `work` ran elsewhere."""
    worst = 0.0
    while not work.done():
        started = time.perf_counter()
        await asyncio.sleep(0.001)
        worst = max(worst, time.perf_counter() - started - 0.001)
    return worst


def test_a_prompt_of_a_megabyte_leaves_the_loop_free(tiny: Tokenizer) -> None:
    """1 MB is rendered and tokenized elsewhere; the budget is 10 ms, 50 on a busy machine."""

    builder = PromptBuilder(tiny, max_model_len=128_000)
    message = {"role": "user", "content": "Hello there, how are you? " * 40_000}

    async def lag() -> float:
        pool = PromptPool(threads=1, queue=1)
        work = asyncio.ensure_future(pool.run(lambda: builder.chat([message])))
        worst = await _worst_lag_s(work)
        with pytest.raises(ContextLengthExceeded):
            await work
        pool.close()
        return worst

    assert min(asyncio.run(lag()) for _ in range(3)) < 0.05
