"""The bytes of single tokens, in several kinds of vocabularies."""

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders

from openai_frontend.prompting.token_bytes import TokenBytes
from openai_frontend.prompting.tokenizer import load
from tests.fast.prompting import vocabularies

AWKWARD = [
    "\U0001f468‍\U0001f469‍\U0001f467",
    "漢字かな",
    "e\u0301",
    "नि",
    "  \n\t",
    "hello world",
    "\x00",
]

# without surrogates, which UTF-8 excludes, and sentencepiece's own character for the space
texts = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"))
    | st.sampled_from(AWKWARD)
).map("".join)


@cache
def demo() -> Tokenizer:
    """The demo model's tokenizer."""
    return load(Path("model_repository/demo/1/weights")).fast


def bytes_of(tokenizer: Tokenizer, token: str) -> bytes | None:
    """Return the bytes of the token with this spelling in the vocabulary."""
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None
    return TokenBytes(tokenizer).get(token_id)


def joined(tokenizer: Tokenizer, text: str) -> bytes:
    """Return the joined bytes of all tokens of the text."""
    known = TokenBytes(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return b"".join(known.get(token_id) or b"?" for token_id in ids)


@settings(deadline=None)
@given(text=texts)
def test_demo_models_tokens_join_to_the_texts_bytes(text: str) -> None:
    """Byte-level BPE: each token is exact, even if it ends within a character."""

    assert joined(demo(), text) == text.encode()


@settings(deadline=None)
@given(text=texts)
def test_byte_level_tokens_join_to_the_texts_bytes(tiny_fast: Tokenizer, text: str) -> None:
    """The same for another vocabulary, whose special tokens differ."""

    assert joined(tiny_fast, text) == text.encode()


@settings(deadline=None)
@given(text=texts)
def test_sentencepiece_tokens_join_to_the_texts_bytes(text: str) -> None:
    """The tokenizer adds only the space before the first word."""

    expected = f" {text}".encode() if text else b""
    assert joined(vocabularies.sentencepiece(), text) == expected


def test_token_bytes_equal_decoded_text() -> None:
    """This holds for the demo model's whole vocabulary, including special and added tokens."""

    known, ids = TokenBytes(demo()), range(demo().get_vocab_size())
    expected = [demo().decode([id], skip_special_tokens=False) for id in ids]
    assert expected == [(known.get(id) or b"").decode(errors="replace") for id in ids]


@pytest.mark.parametrize(
    ("token", "expected"),
    [("<0xE2>", b"\xe2"), ("▁w", b" w"), ("he", b"he"), ("<unk>", b"<unk>")],
)
def test_sentencepiece_token(token: str, expected: bytes) -> None:
    """A byte token is its byte; U+2581 is a space."""

    tokenizer = vocabularies.sentencepiece()
    assert expected == bytes_of(tokenizer, token)


@pytest.mark.parametrize(("token", "expected"), [("play", b" play"), ("##ing", b"ing")])
def test_word_piece(token: str, expected: bytes) -> None:
    """A word starts with the space before it; a continuation (`##`) has none."""

    tokenizer = vocabularies.word_piece()
    assert expected == bytes_of(tokenizer, token)


@pytest.mark.parametrize(
    ("decoder", "token", "expected"),
    [
        (decoders.Metaspace(), "▁a", b" a"),
        (decoders.BPEDecoder("</w>"), "a</w>", b"a "),
        (decoders.ByteLevel(), "漢", "漢".encode()),  # not in the alphabet, so it represents itself
        (None, "a", b"a"),
    ],
)
def test_tokens_of_other_decoders(
    decoder: decoders.Decoder | None, token: str, expected: bytes
) -> None:
    """Each kind of decoder has its own character for the space."""

    tokenizer = vocabularies.of_words(token)
    if decoder is not None:
        tokenizer.decoder = decoder
    assert expected == bytes_of(tokenizer, token)


@pytest.mark.parametrize("special", [True, False])
def test_added_token_is_its_own_text(special: bool) -> None:
    """Added tokens do not use the alphabet of the vocabulary."""

    tokenizer = vocabularies.sentencepiece()
    tokenizer.add_tokens([AddedToken("<x▁Ġ>", special=special)])
    assert bytes_of(tokenizer, "<x▁Ġ>") == "<x▁Ġ>".encode()


def test_unknown_id_has_no_bytes() -> None:
    """Models pad their vocabularies with unused ids."""

    tokenizer = vocabularies.word_piece()
    assert TokenBytes(tokenizer).get(tokenizer.get_vocab_size()) is None
