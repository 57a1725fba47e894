"""The bytes of single tokens, in the vocabularies of several kinds."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders

from openai_frontend.prompting.token_bytes import TokenBytes
from openai_frontend.prompting.tokenizer import load
from tests.unit.prompting import vocabularies

DEMO = load(Path("model_repository/demo/1/weights")).fast
AWKWARD = [
    "\U0001f468‍\U0001f469‍\U0001f467",
    "漢字かな",
    "e\u0301",
    "नि",
    "  \n\t",
    "hello world",
    "\x00",
]

# without surrogates, which no UTF-8 has, and sentencepiece's own letter for the space
texts = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"))
    | st.sampled_from(AWKWARD)
).map("".join)


def bytes_of(tokenizer: Tokenizer, token: str) -> bytes | None:
    """The bytes of the token that the vocabulary spells so."""
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None
    return TokenBytes(tokenizer).get(token_id)


def joined(tokenizer: Tokenizer, text: str) -> bytes:
    """The bytes of all tokens of the text."""
    known = TokenBytes(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return b"".join(known.get(token_id) or b"?" for token_id in ids)


@settings(deadline=None)
@given(text=texts)
def test_the_demo_models_tokens_join_to_the_texts_bytes(text: str) -> None:
    """Byte-level BPE: each token is exact, also where it ends within a character."""

    assert joined(DEMO, text) == text.encode()


@settings(deadline=None)
@given(text=texts)
def test_byte_level_tokens_join_to_the_texts_bytes(tiny_fast: Tokenizer, text: str) -> None:
    """The same for another vocabulary, whose special tokens differ."""

    assert joined(tiny_fast, text) == text.encode()


@settings(deadline=None)
@given(text=texts)
def test_sentencepiece_tokens_join_to_the_texts_bytes(text: str) -> None:
    """But for the space before the first word, which the tokenizer puts there."""

    expected = f" {text}".encode() if text else b""
    assert joined(vocabularies.sentencepiece(), text) == expected


def test_each_token_of_the_demo_model_is_what_it_decodes_to() -> None:
    """Over the whole vocabulary, special and added tokens among it."""

    known, ids = TokenBytes(DEMO), range(DEMO.get_vocab_size())
    expected = [DEMO.decode([id], skip_special_tokens=False) for id in ids]
    assert expected == [(known.get(id) or b"").decode(errors="replace") for id in ids]


@pytest.mark.parametrize(
    ("token", "expected"),
    [("<0xE2>", b"\xe2"), ("▁w", b" w"), ("he", b"he"), ("<unk>", b"<unk>")],
)
def test_a_sentencepiece_token(token: str, expected: bytes) -> None:
    """A byte's token is the byte, the low line is a space."""

    tokenizer = vocabularies.sentencepiece()
    assert expected == bytes_of(tokenizer, token)


@pytest.mark.parametrize(("token", "expected"), [("play", b" play"), ("##ing", b"ing")])
def test_a_word_piece(token: str, expected: bytes) -> None:
    """A word begins with the space before it; what goes on in a word has none."""

    tokenizer = vocabularies.word_piece()
    assert expected == bytes_of(tokenizer, token)


@pytest.mark.parametrize(
    ("decoder", "token", "expected"),
    [
        (decoders.Metaspace(), "▁a", b" a"),
        (decoders.BPEDecoder("</w>"), "a</w>", b"a "),
        (decoders.ByteLevel(), "漢", "漢".encode()),  # not in the alphabet: stands for itself
        (None, "a", b"a"),
    ],
)
def test_a_token_of_other_decoders(
    decoder: decoders.Decoder | None, token: str, expected: bytes
) -> None:
    """Each kind of decoder has its own letter for the space."""

    tokenizer = vocabularies.of_words(token)
    if decoder is not None:
        tokenizer.decoder = decoder
    assert expected == bytes_of(tokenizer, token)


@pytest.mark.parametrize("special", [True, False])
def test_an_added_token_is_its_own_text(special: bool) -> None:
    """Whatever letters the vocabulary is written in: an added token was never written in them."""

    tokenizer = vocabularies.sentencepiece()
    tokenizer.add_tokens([AddedToken("<x▁Ġ>", special=special)])
    assert bytes_of(tokenizer, "<x▁Ġ>") == "<x▁Ġ>".encode()


def test_an_id_that_no_token_has_is_none() -> None:
    """Models pad their vocabularies; such ids stand for nothing."""

    tokenizer = vocabularies.word_piece()
    assert TokenBytes(tokenizer).get(tokenizer.get_vocab_size()) is None
