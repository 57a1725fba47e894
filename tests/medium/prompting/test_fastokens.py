"""Where fastokens tokenizes, it finds the tokens that `tokenizers` finds."""

import functools
import logging
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from openai_frontend.prompting import tokenizer
from openai_frontend.prompting.tokenizer import PackedEncoding, Tokenizer, Truncation
from tests.fast.prompting import vocabularies

pytest.importorskip("fastokens")  # it has no build for some platforms

_DOCS = Path(__file__).parents[3] / "docs"
PARTS = (
    "hello", " world", "HTTP", "camelCase", "don't", "I'LL", "'s", " 1", "12345", "٣", "½", "\n",
    "\r\n", "\n\n\n", "  ", "\t", "\u00a0", "\u3000", "!", "...", "=>", "{}", "é", "e\u0301", "ß",
    "ǅ", "日本語", "한국", "привет", "สวัสดี", "नमस्ते", "👍🏽", "👨\u200d👩", "\u200b", "\u180e",
    "ﬁ", "\0", "\ufffd", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|im_",
    "start|>", "aaaaaaaa",
)  # fmt: skip
texts = st.one_of(st.text(), st.lists(st.sampled_from(PARTS), max_size=40).map("".join))


@functools.cache
def of_family(family: str) -> Tokenizer:
    """Trained on this project's docs."""
    pages = [path.read_text() for path in sorted(_DOCS.glob("*.md"))]
    return with_fastokens(vocabularies.byte_level(family, pages))


def with_fastokens(fast: Any) -> Tokenizer:
    return Tokenizer(fast, {}, {}, tokenizer._shared(fast))


def encoded(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # no request contains a lone surrogate
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("family", vocabularies.SPLITS)
@given(text=texts.filter(encoded), special=st.booleans())
def test_any_text_has_the_same_tokens(family: str, text: str, special: bool) -> None:
    both = of_family(family)
    assert both.quick is not None

    found = both.encode(text, add_special_tokens=special)

    assert isinstance(found, PackedEncoding) == ("\u180e" not in text)
    assert list(found.ids) == both.fast.encode(text, add_special_tokens=special).ids


@given(
    pieces=st.lists(texts.filter(encoded), min_size=1, max_size=4),
    tokens=st.integers(1, 12),
    side=st.sampled_from(["left", "right"]),
    special=st.booleans(),
)
def test_pieces_are_joined_and_cut_alike(
    pieces: list[str], tokens: int, side: Any, special: bool
) -> None:
    quick = of_family("llama3")
    slow, truncation = replace(quick, quick=None), Truncation(tokens, side)

    for find in (
        lambda each: each.encode_pieces(pieces, add_special_tokens=special).ids,
        lambda each: each.cut(pieces, truncation, add_special_tokens=special),
    ):
        assert list(find(quick)) == list(find(slow))


@pytest.mark.parametrize("build", [vocabularies.word_piece, vocabularies.of_words])
def test_other_kinds_of_tokenizers_keep_their_library(build: Any) -> None:
    assert with_fastokens(build()).quick is None


def test_a_missing_package_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no build for some platforms."""
    fast = of_family("gpt2").fast
    monkeypatch.setitem(sys.modules, "fastokens", None)

    assert tokenizer._quick(fast, fast.to_str()) is None


def test_one_other_token_rules_it_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other, fast = of_family("qwen2").quick, of_family("llama3").fast
    assert other is not None
    monkeypatch.setattr("fastokens.Tokenizer.from_json_str", lambda text: other.fastokens)
    caplog.set_level(logging.INFO)

    assert tokenizer._quick(fast, fast.to_str()) is None
    assert "tokenized without fastokens: it finds other tokens in some texts" in caplog.messages


@pytest.mark.parametrize("error", [ValueError("match limit"), RuntimeError("match limit")])
def test_a_text_that_it_cannot_split_is_tokenized_all_the_same(error: Exception) -> None:
    class Failing:
        def encode_batch_flat(self, texts: list[str]) -> Any:
            raise error

    failing: Any = Failing()
    both = of_family("llama3")
    assert both.quick is not None
    both = replace(both, quick=replace(both.quick, fastokens=failing))

    found = both.encode("Hello there", add_special_tokens=True)

    assert found.ids == both.fast.encode("Hello there").ids


def test_models_with_the_same_tokenizer_share_it() -> None:
    """Also a reloaded model's next generation; afterwards nothing keeps it."""
    fast = vocabularies.byte_level("gpt2", ["known to no other test"])
    one = tokenizer._shared(fast)
    kept = weakref.ref(one)

    assert one is not None
    assert tokenizer._shared(FastTokenizer.from_str(fast.to_str())) is one
    del one
    assert kept() is None


def test_a_model_can_do_without(tokenizer_folder: Path) -> None:
    assert tokenizer.load(tokenizer_folder, use_fastokens=False).quick is None


def test_a_panic_rules_it_out(caplog: pytest.LogCaptureFixture) -> None:
    """Of the other library here: the split takes too long for a text that is tried."""
    fast = vocabularies.byte_level("gpt2", ["ab"])
    fast.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    caplog.set_level(logging.INFO)

    assert tokenizer._shared(fast) is None
    assert tokenizer._shared(fast) is None  # known without another trial
    assert caplog.text.count("tokenized without fastokens: ") == 1
