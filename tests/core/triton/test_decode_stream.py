"""Token ids to text, one at a time: equal to tokenizers' own streams, at a bounded cost."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models
from tokenizers.decoders import DecodeStream
from tokenizers.pre_tokenizers import ByteLevel

from openai_frontend.prompting.token_bytes import TokenBytes
from openai_frontend.triton._core import BoundedDecodeStream
from tests.fast.prompting import vocabularies

BOUND = 16
SPECIAL = "<s>"


def byte_level(*more: bytes) -> Tokenizer:
    """Like GPT-2's, Llama 3's and Qwen's: a token for each byte, and some of several bytes."""
    letters = {bytes_of_letter(letter): letter for letter in ByteLevel.alphabet()}
    tokens = [bytes([byte]) for byte in range(256)] + list(more)
    spelled = ["".join(letters[token[i : i + 1]] for i in range(len(token))) for token in tokens]
    return with_special(of_tokens(spelled))


def of_tokens(tokens: list[str]) -> Tokenizer:
    made = Tokenizer(models.WordLevel({token: rank for rank, token in enumerate(tokens)}, "!"))
    made.decoder = decoders.ByteLevel()
    return made


def bytes_of_letter(letter: str) -> bytes | None:
    return TokenBytes(of_tokens([letter])).get(0)


def with_special(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(SPECIAL, special=True)])
    return tokenizer


TOKENIZERS = {
    "byte level": byte_level(b" the", b"\x9f\x98", b"\x80\xe1\x80"),
    "sentencepiece": with_special(vocabularies.sentencepiece()),
    "word piece": with_special(vocabularies.word_piece()),
}


class CountingStream:
    """A DecodeStream that counts the ids that it decodes."""

    def __init__(self, counts: list[int], ids: list[int]) -> None:
        self._stream = DecodeStream(ids=ids, skip_special_tokens=True)
        self._counts = counts
        self._held, self._since_text = len(ids), 0

    def step(self, tokenizer: Tokenizer, token_id: int) -> str | None:
        self._held += 1
        self._since_text += 1
        self._counts[-1] += 2 * self._held  # the text so far, and the text with the new id
        text = self._stream.step(tokenizer, token_id)
        if text is not None:
            self._held, self._since_text = self._since_text, 0
        return text


def id_of(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    assert found is not None
    return found


def bounded(tokenizer: Tokenizer) -> BoundedDecodeStream:
    return BoundedDecodeStream(
        partial(DecodeStream, skip_special_tokens=True),
        partial(tokenizer.decode, skip_special_tokens=True),
    )


def texts(tokenizer: Tokenizer, ids: Iterable[int]) -> list[str | None]:
    stream = bounded(tokenizer)
    return [stream.step(tokenizer, each) for each in ids]


def unbounded_texts(tokenizer: Tokenizer, ids: Iterable[int]) -> list[str | None]:
    """The texts of tokenizers, which starts a new stream where vLLM does."""
    stream = DecodeStream(skip_special_tokens=True)
    given = []
    for each in ids:
        try:
            text = stream.step(tokenizer, each)
        except Exception as error:  # noqa: BLE001  tokenizers raises no other
            assert str(error).startswith("Invalid prefix")  # noqa: PT017
            stream = DecodeStream(skip_special_tokens=True)
            text = stream.step(tokenizer, each)
        given.append(text)
    return given


def longest_run(given: Sequence[str | None]) -> int:
    """The longest run of ids without text."""
    longest = run = 0
    for text in given:
        run = run + 1 if text is None else 0
        longest = max(longest, run)
    return longest


def ids_of(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Any tokens; many bytes that form no character, and special tokens."""
    size = tokenizer.get_vocab_size()
    special = id_of(tokenizer, SPECIAL)
    some = st.sampled_from([special, *range(min(size, 4)), *range(0x80, min(size, 0x84))])
    return st.lists(st.integers(0, size - 1) | some | st.just(special), max_size=60)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TOKENIZERS)
@given(data=st.data())
def test_text_is_that_of_the_tokenizers_own_stream(kind, data):
    """Each id gives the text that an unbounded stream gives, up to the bound."""
    tokenizer = TOKENIZERS[kind]
    ids = data.draw(ids_of(tokenizer))
    expected = unbounded_texts(tokenizer, ids)
    within = next(
        (end for end in range(len(ids)) if longest_run(expected[: end + 1]) >= BOUND), len(ids)
    )

    assert texts(tokenizer, ids)[:within] == expected[:within]


@given(ids=ids_of(TOKENIZERS["byte level"]), letter=st.just(ord("x")))
def test_runs_beyond_the_bound_change_no_byte_level_text(ids, letter):
    """After any run without text, the joined text is the same as without a bound."""
    tokenizer = TOKENIZERS["byte level"]
    ids = [each for each in ids if each != id_of(tokenizer, SPECIAL)] * 3 + [letter]

    assert joined(texts(tokenizer, ids)) == joined(unbounded_texts(tokenizer, ids))


def joined(given: Iterable[str | None]) -> str:
    return "".join(text or "" for text in given)


def test_tokens_that_end_within_characters_lose_nothing():
    """Burmese has no spaces, and its tokens may end within characters for a whole sentence."""
    tokenizer = TOKENIZERS["byte level"]
    crossing = tokenizer.get_vocab_size(with_added_tokens=False) - 1  # 80 e1 80
    ids = [0xE1, 0x80, *[crossing] * 50, 0x80]

    given = texts(tokenizer, ids)

    assert joined(given) == "\u1000" * 51
    assert longest_run(given) < BOUND


def test_bytes_that_form_no_character_are_replaced():
    """They become U+FFFD after 16 ids, except for the last ones."""
    given = texts(TOKENIZERS["byte level"], [0xC3] * 64)

    assert longest_run(given) == BOUND - 1
    assert set(joined(given)) == {"\ufffd"}
    assert 64 - BOUND <= len(joined(given)) <= 64


@pytest.mark.parametrize("kind", ["byte level", "sentencepiece"])
def test_character_that_begins_before_the_bound_is_complete(kind):
    """A character is not split if its first bytes are the last of a long run."""
    tokenizer = TOKENIZERS[kind]
    special = id_of(tokenizer, SPECIAL)
    first = 1 if kind == "sentencepiece" else 0
    emoji = [first + byte for byte in "😀".encode()]

    for torn in range(1, 4):
        ids = [special] * (BOUND - torn) + emoji
        assert joined(texts(tokenizer, ids)) == "😀"


def test_skipped_tokens_give_no_text():
    """Omitted special tokens give no text, and the next word keeps its space."""
    tokenizer = TOKENIZERS["sentencepiece"]
    he, world, special = (id_of(tokenizer, token) for token in ("he", "▁w", SPECIAL))

    given = texts(tokenizer, [he, *[special] * 100, world])

    assert joined(given[:-1]) == "he"
    assert given[-1] == " w"


@pytest.mark.parametrize("token", [SPECIAL, "À", "a"])
def test_each_id_costs_the_same(token):
    """After any number of ids without text, the next one decodes at most 200 ids."""
    tokenizer = TOKENIZERS["byte level"]
    counts: list[int] = []

    def decode(ids: list[int]) -> str:
        counts[-1] += len(ids)
        return tokenizer.decode(ids)

    stream = BoundedDecodeStream(partial(CountingStream, counts), decode)
    token_id = id_of(tokenizer, token)
    for _ in range(2000):
        counts.append(0)
        stream.step(tokenizer, token_id)

    assert max(counts) <= 200
    assert sum(counts) / len(counts) <= 50


class Panic(BaseException):
    """The exception that tokenizers raises if its own code panics."""


def test_panic_of_the_tokenizer_is_an_exception():
    """A panic that would end the event loop becomes an error of one request."""

    class Panicking:
        def step(self, tokenizer: Any, token_id: int) -> str:
            raise Panic("index out of bounds")

    stream = BoundedDecodeStream(lambda ids: Panicking(), str)

    with pytest.raises(RuntimeError, match=r"The tokenizer failed\.") as failed:
        stream.step(object(), 0)
    assert isinstance(failed.value.__cause__, Panic)


def test_unknown_ids():
    """An id outside the vocabulary is an error, and the stream continues."""
    tokenizer = TOKENIZERS["byte level"]
    stream = bounded(tokenizer)

    with pytest.raises(TypeError, match="integer"):
        stream.step(tokenizer, -1)
    assert stream.step(tokenizer, ord("a")) == "a"
