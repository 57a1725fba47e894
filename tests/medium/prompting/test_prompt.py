"""Prompts as text and token ids."""

import asyncio
import contextlib
import dataclasses
import time
from array import array
from collections.abc import Callable
from typing import Any, Literal

import pytest

from openai_frontend.errors import ContextLengthExceeded, InvalidRequest
from openai_frontend.prompting import prompt as prompt_module
from openai_frontend.prompting.prompt import PromptBuilder, TokenizeOptions
from openai_frontend.prompting.tokenizer import Tokenizer, TokenizerPool, Truncation
from tests.fast.prompting import vocabularies
from tests.fast.prompting.tiny_tokenizer import QWEN

USER = {"role": "user", "content": "Hello"}


def test_chat_uses_the_templates_special_tokens(tiny: Tokenizer) -> None:
    """The template writes BOS if the model needs it; the tokenizer must not add another."""

    prompt = PromptBuilder(tiny).chat([USER])
    decoded = tiny.fast.decode(prompt.token_ids, skip_special_tokens=False)
    assert decoded == prompt.text


def test_completion_uses_the_tokenizers_special_tokens(tiny: Tokenizer) -> None:
    """A raw prompt starts with BOS if the tokenizer adds it."""

    prompt = PromptBuilder(tiny).completion("Hello")
    decoded = tiny.fast.decode(prompt.token_ids, skip_special_tokens=False)
    assert decoded == "<|endoftext|>Hello"


@pytest.mark.parametrize("written", ["<|im_end|>", ""])
def test_half_of_a_character_is_replaced(tiny: Tokenizer, written: str) -> None:
    """Arguments of calls, as JSON within JSON, may have one; tokenizers raised a TypeError."""
    call = {"function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}
    message = {"role": "assistant", "content": written, "tool_calls": [call]}

    prompt = PromptBuilder(tiny, chat_template=QWEN).chat([message])

    assert prompt.text is not None
    assert '"arguments": {"a": "\ufffd"}' in prompt.text


def test_configured_template_overrides_the_folders(tiny: Tokenizer) -> None:
    assert PromptBuilder(tiny, chat_template="mine").chat([USER]).text == "mine"


def test_base_model_refuses_chats(tiny: Tokenizer) -> None:
    """The error says that it has no chat template."""

    base = dataclasses.replace(tiny, chat_templates={})
    with pytest.raises(InvalidRequest, match="has no chat template") as refused:
        PromptBuilder(base).chat([USER])
    assert refused.value.param == "model"


TOOL = {"type": "function"}
DOCUMENT = {"text": "x"}


@pytest.mark.parametrize(
    ("options", "purpose"),
    [
        ({}, "default"),
        ({"tools": [TOOL]}, "tool_use"),
        ({"documents": [DOCUMENT]}, "rag"),
        ({"tools": [TOOL], "documents": [DOCUMENT]}, "tool_use"),
    ],
)
def test_template_by_purpose(tiny: Tokenizer, options: dict[str, Any], purpose: str) -> None:
    """If a model has several templates, the content of the chat selects one."""

    named = {
        name: f"{name}{{{{ documents and '' or '' }}}}" for name in ("default", "tool_use", "rag")
    }
    builder = PromptBuilder(dataclasses.replace(tiny, chat_templates=named))
    assert builder.chat([USER], **options).text == purpose


def test_unsupported_documents_are_refused(tiny: Tokenizer) -> None:
    """Otherwise they would be dropped silently."""

    with pytest.raises(InvalidRequest) as refused:
        PromptBuilder(tiny).chat([USER], documents=[DOCUMENT])
    assert (refused.value.param, refused.value.code) == ("documents", "unsupported_parameter")


def test_documents_reach_the_template(tiny: Tokenizer) -> None:
    """A template that uses them gets them unchanged."""

    builder = PromptBuilder(tiny, chat_template="{{ documents[0].text }}")
    assert builder.chat([USER], documents=[DOCUMENT]).text == "x"


def test_template_knows_a_variable(tiny: Tokenizer) -> None:
    """Any of the model's templates counts, because the chat selects the one that renders."""

    named = {"default": "{{ effort }}", "rag": "{{ documents }}"}
    builder = PromptBuilder(dataclasses.replace(tiny, chat_templates=named))
    known = [builder.template_knows(name) for name in ("effort", "documents", "verbosity")]
    assert known == [True, True, False]


def test_prefill_continues_the_last_message(tiny: Tokenizer) -> None:
    """The model continues the assistant's last message."""

    prefill = {"role": "assistant", "content": "I am"}
    builder = PromptBuilder(tiny)
    prompt = builder.chat([USER, prefill], add_generation_prompt=False, continue_final_message=True)
    assert prompt.text.endswith("<|im_start|>assistant\nI am")


def test_chat_with_the_tokenizers_special_tokens(tiny: Tokenizer) -> None:
    """Some templates leave BOS to the tokenizer."""

    builder = PromptBuilder(tiny)
    plain, special = (
        builder.chat(
            [USER], TokenizeOptions(add_special_tokens=special, param="messages")
        ).token_ids
        for special in (False, True)
    )
    assert special == [tiny.fast.token_to_id("<|endoftext|>"), *plain]


@pytest.mark.parametrize(
    ("side", "kept"), [("left", "<|endoftext|> you?"), ("right", "<|endoftext|>Hello")]
)
def test_truncation(tiny: Tokenizer, side: Literal["left", "right"], kept: str) -> None:
    """It removes tokens on the requested side and keeps the special tokens."""

    text = "Hello! Hello you?" if side == "right" else "Hello! Hello! you?"
    whole = tiny.encode(kept, add_special_tokens=False)
    reading = TokenizeOptions(
        add_special_tokens=True, param="prompt", truncation=Truncation(len(whole), side)
    )
    prompt = PromptBuilder(tiny, max_model_len=len(whole)).completion(text, reading)
    assert (prompt.text, prompt.token_ids) == (None, whole.ids)


def test_short_prompt_is_not_truncated(tiny: Tokenizer) -> None:
    """It keeps its text."""

    reading = TokenizeOptions(
        add_special_tokens=True, param="prompt", truncation=Truncation(50, "left")
    )
    assert PromptBuilder(tiny).completion("Hello", reading).text == "Hello"


def test_counting_beyond_the_context(tiny: Tokenizer) -> None:
    """Requests that only count get the number of tokens."""

    reading = TokenizeOptions(add_special_tokens=False, param="prompt", within_context=False)
    prompt = PromptBuilder(tiny, max_model_len=8).completion("!" * 50, reading)
    assert len(prompt.token_ids) > 8


def test_counting_has_a_limit(tiny: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unlimited list of ids would block the event loop."""

    monkeypatch.setattr(prompt_module, "MAX_COUNTED_TOKENS", 49)
    reading = TokenizeOptions(add_special_tokens=False, param="prompt", within_context=False)
    with pytest.raises(InvalidRequest, match="more than 49 tokens") as refused:
        PromptBuilder(tiny).completion("! " * 25, reading)
    assert refused.value.param == "prompt"


PARAMS = ("query", "documents")


def test_pair_is_one_sequence_with_token_types() -> None:
    """A cross-encoder gets both texts in one sequence."""

    fast = vocabularies.word_piece()
    builder = PromptBuilder(Tokenizer(fast, {}, {}))
    assert builder.pair("play", "playing chess", params=PARAMS) == ([1, 1, 2, 3], [0, 1, 1, 1])


@pytest.mark.parametrize(
    ("tokens", "side", "expected"),
    [
        (4, "right", ([1, 1, 2, 3], [0, 1, 1, 1])),
        (3, "right", ([1, 1, 2], [0, 1, 1])),
        (3, "left", ([1, 2, 3], [0, 1, 1])),
        (1, "right", ([1], [0])),
    ],
)
def test_only_the_second_text_of_a_pair_is_cut(tokens: int, side: Any, expected: Any) -> None:
    """Its tokens keep their type. A first text that is too long is refused."""
    builder = PromptBuilder(Tokenizer(vocabularies.word_piece(), {}, {}))
    cut = Truncation(tokens, side)

    assert builder.pair("play", "playing chess", params=PARAMS, truncation=cut) == expected
    with pytest.raises(InvalidRequest, match="'query': it alone") as refused:
        builder.pair("play " * (tokens + 1), "play", params=PARAMS, truncation=cut)
    assert refused.value.param == "query"


@pytest.mark.parametrize(
    ("texts", "longer"), [(("play", "playing chess"), "documents"), (("play play", "x"), "query")]
)
def test_pair_beyond_the_context(texts: tuple[str, str], longer: str) -> None:
    """The error names the caller's field with the longer text."""

    builder = PromptBuilder(Tokenizer(vocabularies.word_piece(), {}, {}), max_model_len=2)
    with pytest.raises(ContextLengthExceeded) as refused:
        builder.pair(*texts, params=PARAMS)
    assert refused.value.param == longer


@pytest.mark.parametrize(("skip", "text"), [(True, "Hello"), (False, "<|endoftext|>Hello")])
def test_decode_with_and_without_special_tokens(tiny: Tokenizer, skip: bool, text: str) -> None:
    builder = PromptBuilder(tiny)
    token_ids = builder.completion("Hello").token_ids
    assert text == builder.decode(token_ids, skip_special_tokens=skip)


def test_fill_in_the_middle_format_follows_the_vocabulary() -> None:
    fast = vocabularies.of_words("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
    builder = PromptBuilder(Tokenizer(fast, {}, {}))
    assert builder.fill_in_the_middle("a", "b") == "<fim_prefix>a<fim_suffix>b<fim_middle>"


def test_unsupported_suffix_is_refused(tiny: Tokenizer) -> None:
    """The error is OpenAI's for a parameter that the model does not support."""

    with pytest.raises(InvalidRequest) as refused:
        PromptBuilder(tiny).fill_in_the_middle("a", "b")
    assert (refused.value.param, refused.value.code) == ("suffix", "unsupported_parameter")


def _chat(builder: PromptBuilder) -> object:
    return builder.chat([{"role": "user", "content": "!" * 50}])


def _completion(builder: PromptBuilder) -> object:
    return builder.completion("!" * 50)


@pytest.mark.parametrize(("build", "param"), [(_chat, "messages"), (_completion, "prompt")])
def test_prompt_beyond_the_context(
    tiny: Tokenizer, build: Callable[[PromptBuilder], object], param: str
) -> None:
    """The message has the limit and the number of tokens."""

    wanted = r"maximum context length is 8 tokens\. However, your \w+ resulted in \d+ tokens"
    with pytest.raises(ContextLengthExceeded, match=wanted) as refused:
        build(PromptBuilder(tiny, max_model_len=8))
    assert refused.value.param == param


async def _worst_lag_s(work: asyncio.Future[object] | asyncio.Task[object]) -> float:
    """Return the longest time that `work` blocked the event loop."""
    worst = 0.0
    while not work.done():
        started = time.perf_counter()
        await asyncio.sleep(0.001)
        worst = max(worst, time.perf_counter() - started - 0.001)
    return worst


@pytest.mark.slow
def test_large_prompt_does_not_block_the_event_loop(tiny: Tokenizer) -> None:
    """1 MB is rendered and tokenized on a thread; the budget is 10 ms, 50 on a busy machine."""

    builder = PromptBuilder(tiny, max_model_len=128_000)
    message = {"role": "user", "content": "Hello there, how are you? " * 40_000}

    async def lag() -> float:
        pool = TokenizerPool(threads=1, queue=1)
        work = asyncio.ensure_future(pool.run(lambda: builder.chat([message])))
        worst = await _worst_lag_s(work)
        with pytest.raises(ContextLengthExceeded):
            await work
        pool.close()
        return worst

    assert min(asyncio.run(lag()) for _ in range(3)) < 0.05


class Counting:
    """A tokenizer of either library that records the texts that it encodes."""

    def __init__(self, fast: Any) -> None:
        self._fast = fast
        self.encoded: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fast, name)

    def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
        self.encoded += texts
        return self._fast.encode_batch_fast(texts, **options)

    def encode_batch_flat(self, texts: list[str]) -> Any:
        self.encoded += texts
        return self._fast.encode_batch_flat(texts)


@pytest.mark.parametrize("limit", [8, 4096])
def test_prompt_is_tokenized_once(tiny: Tokenizer, limit: int) -> None:
    """The same encoding gives the count and the ids, whether they fit or not."""

    counting: Any = Counting(tiny.fast if tiny.quick is None else tiny.quick.fastokens)
    if tiny.quick is None:
        counted = dataclasses.replace(tiny, fast=counting)
    else:
        counted = dataclasses.replace(
            tiny, quick=dataclasses.replace(tiny.quick, fastokens=counting)
        )
    builder = PromptBuilder(counted, max_model_len=limit)
    counting.encoded.clear()
    with contextlib.suppress(ContextLengthExceeded):
        builder.chat([USER, USER])
    assert "".join(counting.encoded) == PromptBuilder(tiny).chat([USER, USER]).text


def test_many_ids_are_packed(tiny: Tokenizer) -> None:
    """They have the format of a tensor and the same values."""

    text = "Hello there " * 8000
    prompt = PromptBuilder(tiny).completion(text)
    assert isinstance(prompt.token_ids, array)
    assert list(prompt.token_ids) == tiny.fast.encode(text).ids


def test_batch_equals_single_texts(tiny: Tokenizer) -> None:
    """The batch has more texts than fit into one call, some of them truncated."""

    texts = [f"Hello {'!' * (number % 7)} {number}" for number in range(300)]
    readings = [
        TokenizeOptions(
            add_special_tokens=True, param=f"input[{at}]", truncation=Truncation(9, "right")
        )
        for at in range(len(texts))
    ]
    builder = PromptBuilder(tiny)
    one_by_one = [builder.completion(*each) for each in zip(texts, readings, strict=True)]
    assert builder.completions(texts, readings) == one_by_one
    assert {prompt.text is None for prompt in one_by_one} == {True, False}


def test_too_long_text_of_a_batch_is_named_by_its_index(tiny: Tokenizer) -> None:
    texts = ["Hello"] * 200 + ["!" * 50] + ["Hello"]
    readings = [
        TokenizeOptions(add_special_tokens=True, param=f"input[{at}]") for at in range(len(texts))
    ]
    with pytest.raises(ContextLengthExceeded) as refused:
        PromptBuilder(tiny, max_model_len=40).completions(texts, readings)
    assert refused.value.param == "input[200]"


def test_vocabulary_methods(tiny: Tokenizer) -> None:
    """They return ids without special tokens, the text of one token, and a text without the
    automatic BOS.
    """

    prompts = PromptBuilder(tiny)
    ids = prompts.ids("Hello")

    assert "".join(prompts.token_text(token_id) or "?" for token_id in ids) == "Hello"
    assert prompts.token_text(10**6) is None
    assert prompts.unprefixed("<|endoftext|>Hello") == "Hello"
    assert prompts.unprefixed("Hello") == "Hello"
    assert prompts.plain("<|endoftext|>Hello") == "Hello"
