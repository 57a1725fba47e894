"""Token ids of text between special tokens, remembered."""

import sys
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from openai_frontend.prompting import tokenizer as tokenizers_of_folders
from openai_frontend.prompting.segment_cache import SegmentCache, _boundaries

DEMO = Path(__file__).parents[3] / "model_repository" / "demo" / "1" / "weights"
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")


def wrapped(fast: Tokenizer) -> tokenizers_of_folders.Tokenizer:
    return tokenizers_of_folders.Tokenizer(fast, {}, {})


def byte_level(*added: AddedToken) -> tokenizers_of_folders.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("a", "a"), ("a", "b"), ("Ġ", "a"), ("<", "|")]
    vocabulary = {each: i for i, each in enumerate([*alphabet, *map("".join, merges)])}
    fast = Tokenizer(models.BPE(vocabulary, merges))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_tokens([*added])
    return wrapped(fast)


def metaspace(scheme: Any) -> tokenizers_of_folders.Tokenizer:
    """As of SentencePiece: a mark at the beginning of the text, or of each segment."""
    letters = ["▁", "a", "b", "▁a", "ab", "\n", "<unk>"]
    vocabulary = {each: i for i, each in enumerate(letters)}
    fast = Tokenizer(models.BPE(vocabulary, [("▁", "a"), ("a", "b")], unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    fast.add_special_tokens([AddedToken(each, normalized=False) for each in ("<s>", "[INST]")])
    return wrapped(fast)


def prepended() -> tokenizers_of_folders.Tokenizer:
    """As of Llama 2: a normalizer that prepends the mark."""
    made = metaspace("never")
    made.fast.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return made


def special(content: str, **options: bool) -> AddedToken:
    return AddedToken(content, special=True, **{"normalized": False, **options})


TOKENIZERS: dict[str, Callable[[], tokenizers_of_folders.Tokenizer]] = {
    "demo": lambda: tokenizers_of_folders.load(DEMO),  # imports transformers
    "bytes": lambda: byte_level(*map(special, SPECIAL)),
    "takes white space": lambda: byte_level(
        special("<|im_start|>", rstrip=True), special("<|im_end|>", lstrip=True)
    ),
    "first": lambda: metaspace("first"),
    "always": lambda: metaspace("always"),
    "never": lambda: metaspace("never"),
    "prepended": prepended,
}
PIECES = [*SPECIAL, "<s>", "[INST]", "a", "ab", " ", "\n", "  ", "<|", "|>", "é", "<|im_", "x"]


@cache
def loaded(name: str) -> tokenizers_of_folders.Tokenizer:
    return TOKENIZERS[name]()


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), max_size=4))
def test_ids_are_those_of_the_whole_text(name: str, texts: list[str]) -> None:
    """Whatever is known from texts before, for each kind of tokenizer."""
    tokenizer = loaded(name)
    cache = SegmentCache(tokenizer)

    for text in [*texts, *texts]:
        encoding = cache.encode(text)
        expected = tokenizer.encode(text, add_special_tokens=False).ids
        assert (len(encoding), list(encoding.ids)) == (len(expected), expected)


@pytest.mark.parametrize("name", ["demo", "bytes", "first", "always", "prepended"])
def test_next_turn_tokenizes_only_what_is_new(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = loaded(name)
    first, second = ("<s>", "[INST]") if name not in ("demo", "bytes") else SPECIAL[:2]
    cache = SegmentCache(tokenizer)
    conversation = f"{first}a a{second}\nb"
    _ = cache.encode(conversation).ids
    tokenized: list[Sequence[str]] = []
    encode_all = type(tokenizer).encode_all

    def recorded(self: Any, texts: Sequence[str], **options: Any) -> Any:
        tokenized.append(texts)
        return encode_all(self, texts, **options)

    monkeypatch.setattr(type(tokenizer), "encode_all", recorded)
    _ = cache.encode(f"{conversation}{first}ab").ids

    assert cache.enabled
    assert tokenized == [[f"{first}ab"]]


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        ([special("<a>"), special("<b>")], ["<a>", "<b>"]),
        ([special("<a>"), AddedToken("<b>", special=False)], ["<a>"]),
        ([special("<a>", lstrip=True), special("<b>", single_word=True)], []),
        ([special("<a>", normalized=True)], []),
        ([special("<a>"), special("<a>x")], ["<a>", "<a>x"]),  # the longest is found
        ([special("<a>"), AddedToken("<a>x", special=False)], []),
        ([special("<a>"), AddedToken("x<a>", special=False)], []),
        ([special("<a>"), AddedToken("x<", special=False)], []),
        ([special("<a>"), special("x<a>y")], ["x<a>y"]),
        ([special("|")], []),
    ],
)
def test_texts_are_cut_only_at_tokens_that_are_always_found(added, expected):
    """Not where another added token may take a part of one."""

    assert expected == _boundaries(added)


def test_oldest_segments_are_forgotten():
    """What is kept, with the objects that hold it, takes at most `max_bytes`."""
    cache = SegmentCache(loaded("bytes"), max_bytes=700)

    for text in ("<|im_end|>" + letter * 10 for letter in "abcbc"):
        assert len(cache.encode(text).ids) > 1

    assert [segment[-1] for segment in cache._known] == ["b", "c"]
    held = sum(sys.getsizeof(segment) + sys.getsizeof(ids) for segment, ids in cache._known.items())
    assert held < cache._bytes <= 700


def test_many_ids_are_an_array():
    """A tensor is made of it without a copy in Python."""
    cache = SegmentCache(loaded("bytes"))
    text = "<|im_start|>" + "xy" * 5000

    new, known = cache.encode(text).ids, cache.encode(text).ids

    assert isinstance(new, array)
    assert new == known
    assert list(new) == loaded("bytes").encode(text, add_special_tokens=False).ids
