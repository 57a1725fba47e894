import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_frontend.generation import TokenLogprobs
from openai_frontend.serving.output.logprobs import (
    Alternatives,
    ChatLogprobs,
    TextLogprobs,
    TokenNames,
    extended,
)

# ids below 256 are single bytes; the tokenizer does not know 300
TOKENS = {256: "✓".encode(), 257: b" the", 258: b""}


def token_bytes(token_id: int) -> bytes | None:
    return bytes([token_id]) if token_id < 256 else TOKENS.get(token_id)


NAMES = TokenNames(token_bytes, as_ids=False)


def position(*logprobs: tuple[int, float | None]) -> TokenLogprobs:
    """The logprobs of one position; the sampled token comes first."""
    return {
        token: {"logprob": logprob, "rank": rank, "decoded_token": f"<{token}>"}
        for rank, (token, logprob) in enumerate(logprobs, 1)
    }


def test_chat_logprobs_have_the_sampled_token_and_the_alternatives():
    """Each token has its bytes. The likeliest alternative comes first."""
    written = ChatLogprobs(NAMES, Alternatives(2)).tokens(
        [position((98, -2.0), (97, -0.5), (99, -1.0))]
    )

    assert written == {
        "content": [
            {
                "token": "b",
                "logprob": -2.0,
                "bytes": [98],
                "top_logprobs": [
                    {"token": "a", "logprob": -0.5, "bytes": [97]},
                    {"token": "c", "logprob": -1.0, "bytes": [99]},
                ],
            }
        ],
        "refusal": None,
    }


values = st.floats(allow_nan=False) | st.integers(-10_000, 0) | st.none()


@given(
    positions=st.lists(
        st.lists(st.tuples(st.integers(0, 300), values), min_size=1, max_size=6), max_size=3
    ),
    top=st.integers(0, 5),
    requested=st.lists(st.integers(0, 300), max_size=3),
    as_ids=st.booleans(),
)
def test_rendered_logprobs_equal_the_dump(positions, top, requested, as_ids):
    """The JSON of constant parts and numbers is that of the whole object."""
    writer = ChatLogprobs(TokenNames(token_bytes, as_ids=as_ids), Alternatives(top, requested))
    given = [position(*each) for each in positions]

    assert orjson.dumps(writer.tokens(given)) == orjson.dumps(writer.fragment(given))


def test_character_split_into_three_tokens():
    """Each token has its own byte and a text that names it."""
    tokens = [position((byte, -1.0)) for byte in "✓".encode()]

    content = ChatLogprobs(NAMES, Alternatives(0)).tokens(tokens)["content"]

    assert [entry["bytes"] for entry in content] == [[0xE2], [0x9C], [0x93]]
    assert content[0]["token"] == r"\xe2"
    assert bytes(byte for entry in content for byte in entry["bytes"] or ()).decode() == "✓"


def test_completion_names_partial_tokens_as_openai_does():
    """All tokens of a character have the offset of its start."""
    tokens = [position((byte, -1.0)) for byte in [97, *"✓".encode(), 98]]

    written = TextLogprobs(NAMES, Alternatives(0)).tokens(tokens)

    assert written["tokens"] == ["a", r"bytes:\xe2", r"bytes:\x9c", r"bytes:\x93", "b"]
    assert written["text_offset"] == [0, 1, 1, 1, 2]


AS_IDS = TokenNames(token_bytes, as_ids=True)
NO_TOP = Alternatives(0)
ENTRIES: dict[str, tuple[TokenNames, Alternatives, TokenLogprobs, dict[str, Any]]] = {
    "no top": (NAMES, NO_TOP, position((97, -0.5), (98, -1.0)), {"top_logprobs": []}),
    # JSON has no infinity; OpenAI uses the same number
    "impossible": (NAMES, NO_TOP, position((97, float("-inf"))), {"logprob": -9999.0}),
    "impossible, none": (NAMES, NO_TOP, position((97, None)), {"logprob": -9999.0}),
    # `return_tokens_as_token_ids` changes the name; the bytes stay
    "as ids": (AS_IDS, NO_TOP, position((97, -1.0)), {"token": "token_id:97", "bytes": [97]}),
    # unknown to the tokenizer: the engine's text
    "unknown": (
        NAMES, NO_TOP, position((300, -1.0)), {"token": "<300>", "bytes": list(b"<300>")},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("names", "top", "given", "expected"), ENTRIES.values(), ids=ENTRIES)
def test_entry_of_a_chat_token(names, top, given, expected):
    [entry] = ChatLogprobs(names, top).tokens([given])["content"]

    assert entry.items() >= expected.items()


def test_requested_token_ids_appear_next_to_the_sampled_token():
    asked = Alternatives(token_ids=[99, 100])

    [entry] = ChatLogprobs(NAMES, asked).tokens([position((97, -0.5), (100, -9.0), (99, -8.0))])[
        "content"
    ]

    assert [top["token"] for top in entry["top_logprobs"]] == ["a", "c", "d"]


def test_completion_logprobs_are_parallel_lists():
    """The top logprobs include the sampled token even if it is unlikely."""
    written = TextLogprobs(NAMES, Alternatives(1)).tokens(
        [position((98, -2.0), (97, -0.5)), position((257, -0.1))]
    )

    assert written == {
        "tokens": ["b", " the"],
        "token_logprobs": [-2.0, -0.1],
        "top_logprobs": [{"a": -0.5, "b": -2.0}, {" the": -0.1}],
        "text_offset": [0, 1],
    }


def test_echoed_prompt_starts_with_a_null_logprob():
    """A token that is not in the text has length zero."""
    writer = TextLogprobs(NAMES, Alternatives(1))
    positions = [None, position((104, -1.0)), position((105, -2.0), (106, -0.5))]

    echoed = writer.prompt("hi", [258, 104, 105], positions)
    whole = extended(echoed, writer.tokens([position((33, -0.3))]))

    assert whole["tokens"] == ["", "h", "i", "!"]
    assert whole["token_logprobs"] == [None, -1.0, -2.0, -0.3]
    assert whole["top_logprobs"] == [None, {"h": -1.0}, {"j": -0.5, "i": -2.0}, {"!": -0.3}]
    assert whole["text_offset"] == [0, 0, 1, 2]


def test_sentencepiece_prefix_space_does_not_shift_offsets():
    """Such a tokenizer inserts a space before the text."""
    names = TokenNames({1: b" Hi", 2: b" you"}.__getitem__, as_ids=False)
    positions: list[Any] = [None, position((2, -1.0))]

    written = TextLogprobs(names, Alternatives(0)).prompt("Hi you", [1, 2], positions)

    assert written["text_offset"] == [0, 2]


NORMALIZED: dict[str, tuple[str, list[str], list[int]]] = {
    "NFC": ("cafe\u0301 ok then", ["caf", "é", " ok", " then"], [0, 3, 5, 8]),
    "NFC in bytes": ("cafe\u0301 ok é", ["caf", "\udcc3", "\udca9", " ok", " é"], [0, 3, 3, 5, 8]),
    "lower case": ("Hello big World", ["hello", " big", " world"], [0, 5, 9]),
    "unknown": ("a ☃ b", ["a", " <unk>", " b", " b"], [0, 1, 3, 5]),
    "white space": ("a\t\tb c", ["a", " b", " c"], [0, 1, 4]),
    "special token that the text names": ("is <s> text", ["<s>", "is", " <s>"], [0, 0, 2]),
    "two tokens that are nowhere": ("hi you", ["<s>", "<user>", "hi", " you"], [0, 0, 0, 2]),
    "text without any token": ("☃" * 40, ["x", "y"], [0, 0]),
}


@pytest.mark.parametrize(("text", "tokens", "offsets"), NORMALIZED.values(), ids=NORMALIZED)
def test_offsets_after_a_token_that_is_not_in_the_prompt(text, tokens, offsets):
    """The next tokens have their own offsets again, and the completion begins after the prompt."""
    raw = {at: token.encode(errors="surrogateescape") for at, token in enumerate(tokens)}
    names = TokenNames(raw.__getitem__, as_ids=False)
    writer = TextLogprobs(names, Alternatives())
    positions: list[Any] = [None, *[position((at, -1.0)) for at in range(1, len(tokens))]]

    echoed = writer.prompt(text, range(len(tokens)), positions)
    generated = writer.tokens([position((0, -1.0))])

    assert (echoed["text_offset"], generated["text_offset"]) == (offsets, [len(text)])


@given(st.text(max_size=20), st.data())
def test_offset_is_the_start_of_the_character(text, data):
    """The rule holds for every split of a text into byte tokens."""
    raw = text.encode()
    tokens = [position((byte, -1.0)) for byte in raw]
    cut = data.draw(st.integers(0, len(tokens)))
    writer = TextLogprobs(NAMES, Alternatives(0))

    first, second = writer.tokens(tokens[:cut]), writer.tokens(tokens[cut:])

    starts = [i for i, letter in enumerate(text) for _ in letter.encode()]
    assert starts == extended(first, second)["text_offset"]


def test_echoed_prompt_takes_linear_time():
    """The server reads an echoed prompt once. Otherwise 100,000 tokens take seconds."""
    tokens = 100_000
    positions: list[Any] = [None, *[position((97, -1.0))] * (tokens - 1)]

    began = time.process_time()
    TextLogprobs(NAMES, Alternatives()).prompt("a" * tokens, [97] * tokens, positions)

    assert time.process_time() - began < 2
