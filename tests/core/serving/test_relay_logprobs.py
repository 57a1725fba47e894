"""Frames with log probabilities that native code makes: the same bytes as without it."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_frontend.engines import output_tensors
from openai_frontend.generation import LogprobArrays
from openai_frontend.runtime.utf8 import well_formed
from openai_frontend.serving.output.logprobs import Alternatives, ChatLogprobs, TokenNames
from openai_frontend.triton import inprocess
from tests.core.triton import puppet
from tests.core.triton.puppet import Request
from tests.examples import scaled

Row = Sequence[tuple[int, float]]
AROUND = (b'{"text":', b',"tokens":[', b"]}\n")
vocabularies = itertools.count(1 << 32)  # that no tokenizer has


@pytest.fixture
async def ask(start_server, monkeypatch):
    """Sends a request to a core whose models the test answers."""
    monkeypatch.setattr(inprocess, "RUNTIME", puppet.__name__)
    async with puppet.model(await start_server()) as asked:
        yield asked


def token_bytes(token_id: int) -> bytes:
    """Token 9 is a part of a character, and 8 has no bytes."""
    return {8: b"", 9: b"\xe2\x9c"}.get(token_id, f' "{token_id}\n\u00e9'.encode())


class Relay:
    """A relay of log probabilities, and the writer that makes tokens known to it."""

    def __init__(self, request: Request, top: int) -> None:
        self.request = request
        self.writer = ChatLogprobs(TokenNames(token_bytes, as_ids=False), Alternatives(top))
        self.writer.on_rendered, self.resume = request.stream.relay_logprobs(
            "text_output", next(vocabularies), AROUND, top, request.write
        )

    def learn(self, *token_ids: int) -> None:
        add = self.writer.on_rendered
        assert add is not None
        for token_id in token_ids:
            add(token_id, *self.writer._render(token_id, {token_id: {"logprob": 0.0}}))

    def send(self, text: str, rows: Sequence[Row]) -> None:
        arrays = LogprobArrays([[i for i, _ in row] for row in rows],
                               [[v for _, v in row] for row in rows])  # fmt: skip
        outputs = [
            output_tensors.bytes_output("text_output", text),
            *output_tensors.logprob_outputs(arrays),
        ]
        self.request.execution.send(outputs)
        self.request.turn()

    def expected(self, text: str, rows: Sequence[Row]) -> bytes:
        positions = [{token: {"logprob": value} for token, value in row} for row in rows]
        content = orjson.dumps(self.writer.tokens(positions)["content"])[1:-1]
        before, between, after = AROUND
        return before + orjson.dumps(text) + between + content + after


# Also numbers whose shortest form has an exponent, or 16 or more digits before the point
numbers = (
    st.floats(max_value=0, allow_nan=False)
    | st.floats(-20, 0)
    | st.floats(-1e-3, 0).map(lambda each: each**3)
    | st.sampled_from([0.0, -0.0, -1e-5, -1e-4, -123456789012345680.0, -1e16, -1e17, -5e-324])
)


@pytest.mark.parametrize("top", [0, 2, 5])
async def test_frames_equal_those_of_the_writer(ask, top):
    """For any numbers, tokens that come twice, and several tokens in a response."""
    relay = Relay(await ask(), top)
    relay.learn(*range(10))
    widths = st.integers(1, 6)

    @settings(max_examples=scaled(300), deadline=None)
    @given(st.data(), widths, st.integers(1, 3), st.text(max_size=5))
    def check(data: Any, width: int, positions: int, text: str) -> None:
        entry = st.tuples(st.integers(0, 9), numbers)
        row = st.lists(entry, min_size=width, max_size=width)
        rows = data.draw(st.lists(row, min_size=positions, max_size=positions))
        relay.request.frames.clear()
        text = well_formed(text)
        relay.send(text, rows)
        assert [relay.expected(text, rows)] == relay.request.frames

    check()
    assert relay.request.taken() == []


async def test_every_power_of_ten(ask):
    """Numbers are written as orjson does, whatever their exponent."""
    relay = Relay(await ask(), 0)
    relay.learn(1)

    for exponent in range(-320, 4):
        for digits in ("1", "1.5", "9.999999999999998", "1.2345678901234567"):
            rows = [[(1, -float(f"{digits}e{exponent}"))]]
            relay.request.frames.clear()
            relay.send("a", rows)
            assert [relay.expected("a", rows)] == relay.request.frames


async def test_unknown_token_is_left_to_the_writer(ask):
    """And everything after it, until that response is taken. Then the token is known."""
    relay = Relay(await ask(), 1)
    relay.learn(1)

    relay.send("a", [[(1, -1.0)]])
    relay.send("b", [[(2, -1.0)]])
    relay.send("c", [[(1, -1.0)]])
    assert relay.request.taken() == [b"b", b"c"]
    relay.writer.fragment([{2: {"logprob": -1.0}}])
    relay.send("d", [[(2, -1.0)]])

    assert relay.request.frames == [
        relay.expected("a", [[(1, -1.0)]]),
        relay.expected("d", [[(2, -1.0)]]),
    ]


UNREADABLE: dict[str, Callable[[], list[Any]]] = {
    "no numbers": lambda: [output_tensors.logprob_outputs(LogprobArrays([[1]], [[-1.0]]))[0]],
    "not a number": lambda: [
        *output_tensors.logprob_outputs(LogprobArrays([[1]], [[float("nan")]]))
    ],
    "other shapes": lambda: [
        output_tensors.logprob_outputs(LogprobArrays([[1]], [[-1.0]]))[0],
        output_tensors.logprob_outputs(LogprobArrays([[1, 1]], [[-1.0, -1.0]]))[1],
    ],
    "text alone": list,
    "another output": lambda: [output_tensors.bytes_output("other", "x")],
}


@pytest.mark.parametrize("name", UNREADABLE)
async def test_other_responses_are_left_to_the_reader(ask, name):
    relay = Relay(await ask(), 1)
    relay.learn(1)

    relay.request.execution.send(
        [output_tensors.bytes_output("text_output", "a"), *UNREADABLE[name]()]
    )
    relay.request.turn()

    assert (relay.request.frames, relay.request.taken()) == ([], [b"a"])


async def test_log_probabilities_are_not_part_of_plain_text(ask):
    """A relay of text leaves them to the reader, who asked for them."""
    request = await ask()
    request.relay()
    arrays = output_tensors.logprob_outputs(LogprobArrays([[1]], [[-1.0]]))

    request.execution.send([output_tensors.bytes_output("text_output", "a"), *arrays])
    request.turn()

    assert (request.frames, request.taken()) == ([], [b"a"])


async def test_paused_relay_keeps_its_frames(ask):
    """A slow client gets them once it reads again."""
    relay = Relay(await ask(), 0)
    relay.learn(1)
    relay.request.hold = True
    rows = [[(1, -1.0)]]

    for text in "abc":
        relay.send(text, rows)
    assert len(relay.request.frames) == 1
    relay.resume()

    assert b"".join(relay.request.frames) == b"".join(relay.expected(each, rows) for each in "abc")
