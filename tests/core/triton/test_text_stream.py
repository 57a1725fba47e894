"""Tokens that become responses without Python, and those that Python must handle."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from openai_frontend.triton import _core, error_codes, inprocess
from tests.core.triton import puppet
from tests.core.triton.generation_inputs import collect
from tests.core.triton.puppet import Request


@pytest.fixture
async def ask(start_server, monkeypatch):
    """Sends a request to a core whose models the test answers."""
    monkeypatch.setattr(inprocess, "RUNTIME", puppet.__name__)
    async with puppet.model(await start_server()) as asked:
        yield asked


def decoded(tokenizer: Any, token_id: int) -> str | None:
    """The text of a token; odd tokens are a part of a character."""
    if token_id < 0:
        raise ValueError("no such token")
    return None if token_id % 2 else tokenizer[token_id]


def stream_of(
    request: Request,
    texts: Any,
    pending: _core.PendingDeltas | None = None,
    *,
    keeps_ids: bool = False,
) -> Any:
    """The stream object that an engine keeps."""
    native = _core.TextStream(
        request.execution,
        decoded,
        texts,
        pending or _core.PendingDeltas(),
        keeps_ids=keeps_ids,
    )
    return SimpleNamespace(native=native)


def output(
    request_id: str, token_ids: Any, *, reason: str | None = None, stats: Any = None
) -> SimpleNamespace:
    """A step output in the form of vLLM's engine."""
    return SimpleNamespace(
        request_id=request_id, new_token_ids=token_ids, finish_reason=reason, prefill_stats=stats
    )


TEXTS = ["zero", "-", "zwei", "-", "", "-", "\ud800", "-", 7]


async def test_tokens(ask):
    """Each token is a response with its text; one that completes no character is counted only."""
    request = await ask()
    streams = {"r": stream_of(request, TEXTS)}

    for token in (0, 1, 2, 4, 0):
        assert _core.advance_all([output("r", [token])], streams) == ([], [])

    assert request.taken() == [b"zero", b"zwei", b"zero"]
    native = streams["r"].native
    assert (native.take_count(), native.take_count()) == (5, 0)


async def test_tokens_without_text_are_reported(ask):
    """A token without a response is reported immediately, as evidence of progress."""
    pending = _core.PendingDeltas()
    streams = {"r": stream_of(await ask(), TEXTS, pending)}

    _core.advance_all([output("r", [token]) for token in (0, 1, 2, 4, 0)], streams)

    assert (pending.streamed, pending.whole) == (2, 0)


async def test_tokens_without_a_response_of_their_own_have_ids(ask):
    """A response that is not of exactly one token has the ids of all its tokens."""
    request = await ask()
    streams = {"r": stream_of(request, TEXTS, keeps_ids=True)}

    _core.advance_all([output("r", [token]) for token in (0, 1, 3, 2, 0)], streams)

    responses = request.stream._native.take()
    assert [each.item("text_output") for each in responses] == [b"zero", b"zwei", b"zero"]
    assert [each.tolist("token_ids") for each in responses] == [None, [1, 3, 2], None]


async def test_many_streams(ask):
    """One step has a token for each stream; each stream gets its own."""
    requests = {str(number): await ask() for number in range(5)}
    streams = {name: stream_of(request, [f"text of {name}"]) for name, request in requests.items()}

    assert _core.advance_all([output(name, [0]) for name in requests], streams) == ([], [])

    for name, request in requests.items():
        assert request.taken() == [f"text of {name}".encode()]


@pytest.mark.parametrize(
    "more",
    [
        output("r", [0], reason="stop"),
        output("r", [0], stats="prefilled"),
        output("r", [0, 2]),
        output("r", []),
        output("r", (0,)),
        output("r", [-1]),
        output("other", [0]),
        output("slow", [0]),
    ],
    ids=["end", "first", "two tokens", "none", "tuple", "bad token", "unknown", "not plain"],
)
async def test_output_that_python_must_handle(ask, more):
    """Anything but one token's text is returned unprocessed."""
    request = await ask()
    streams = {"r": stream_of(request, TEXTS), "slow": SimpleNamespace(native=None)}

    rest, failed = _core.advance_all([output("r", [2]), more, output("r", [0])], streams)

    assert (rest, failed) == ([more], [])
    assert request.taken() == [b"zwei", b"zero"]
    assert streams["r"].native.take_count() == 2


@pytest.mark.parametrize(("token", "cause"), [(6, "surrogates"), (8, "bytes-like")])
async def test_text_that_cannot_be_sent(ask, token, cause):
    """Only its stream fails, with the reason."""
    request, other = await ask(), await ask()
    streams = {"r": stream_of(request, TEXTS), "o": stream_of(other, TEXTS)}

    rest, failed = _core.advance_all([output("r", [token]), output("o", [0])], streams)

    assert rest == []
    [(failing, reason)] = failed
    assert failing == "r"
    assert cause in reason
    assert other.taken() == [b"zero"]


async def test_output_for_an_ended_request(ask):
    """Output after the caller left is dropped."""
    request = await ask()
    streams = {"r": stream_of(request, TEXTS)}
    request.execution.fail(error_codes.CANCELLED, "gone")

    assert _core.advance_all([output("r", [0])], streams) == ([], [])

    assert streams["r"].native.take_count() == 0
    with pytest.raises(Exception, match="gone"):
        await collect(request.stream)


async def test_output_in_another_format(ask):
    """The output of another engine version is an immediate error, not a hanging stream."""
    streams = {"r": stream_of(await ask(), TEXTS)}

    with pytest.raises(AttributeError, match="request_id"):
        _core.advance_all([object()], streams)
    rest, failed = _core.advance_all([SimpleNamespace(request_id="r")], streams)

    assert rest == []
    assert "finish_reason" in json.dumps(failed)


def sent(array: Any) -> list[Any]:
    """As vLLM's engine sends it."""
    return [array.dtype.str, list(array.shape), memoryview(array.tobytes())]


def with_logprobs(request: Request, columns: int) -> Any:
    native = _core.TextStream(
        request.execution,
        decoded,
        TEXTS,
        _core.PendingDeltas(),
        keeps_ids=False,
        logprobs=columns,
    )
    return SimpleNamespace(native=native)


@pytest.mark.parametrize("id_type", [np.int32, np.int64])
@pytest.mark.parametrize("value_type", [np.float32, np.float64])
async def test_log_probabilities(ask, id_type, value_type):
    """Each token has a response, also one that completes no character, with as many of the engine's
    columns as the request wants.
    """
    request = await ask()
    streams = {"r": with_logprobs(request, 2)}
    ids, values = np.array([[0, 7, 9]], id_type), np.array([[-0.5, -1.5, -3.5]], value_type)

    for token in (0, 1):
        step = output("r", [token])
        step.new_logprobs = [sent(ids), sent(values), None, None]
        assert _core.advance_all([step], streams) == ([], [])

    responses = request.stream._native.take()
    assert [each.item("text_output") for each in responses] == [b"zero", b""]
    assert [each.tolist("logprob_tokens") for each in responses] == [[0, 7], [0, 7]]
    assert [each.tolist("logprob_values") for each in responses] == [[-0.5, -1.5], [-0.5, -1.5]]
    assert streams["r"].native.take_count() == 2


IDS, VALUES = sent(np.array([[0, 7]], np.int32)), sent(np.array([[-0.5, -1.5]], np.float32))


@pytest.mark.parametrize(
    "lists",
    [
        None,
        SimpleNamespace(logprob_token_ids=[[0, 7]], logprobs=[[-0.5, -1.5]]),
        [IDS],
        [VALUES, IDS],
        [IDS, ["<f2", [1, 2], b"1234"]],
        [IDS, ["<f4", [1, 2], b"1234"]],
        [IDS, ["<f4", [2, 1], b"12345678"]],
        [IDS, ["<f4", [1, 1], b"1234"]],
        [IDS, ["<f4", [1, 2], 1]],
        [["<i4", [1, 0], b""], ["<f4", [1, 0], b""]],
        [["<i4", [1, -1], b""], ["<f4", [1, -1], b""]],
        [["<i4", [1, 2**62], b""], ["<f4", [1, 2**62], b""]],
        [["<i4", [1, 2**64], b""], ["<f4", [1, 2**64], b""]],
        [["<i4", ["1", 2], b"12345678"], VALUES],
        [["<i4", [2], b"12345678"], VALUES],
        [[4, [1, 2], b"12345678"], VALUES],
        [["<i4", [1, 2]], VALUES],
    ],
)
async def test_other_log_probabilities_are_left_to_python(ask, lists):
    """Nothing of such an output has been sent."""
    request = await ask()
    streams, step = {"r": with_logprobs(request, 2)}, output("r", [0])
    step.new_logprobs = lists

    assert _core.advance_all([step], streams) == ([step], [])

    assert request.taken() == []
    assert streams["r"].native.take_count() == 0


class Unreadable(Exception):
    def __str__(self) -> str:
        raise ValueError


class Unanswerable:
    """An output that cannot be read."""

    request_id = "unreadable"

    @property
    def finish_reason(self) -> str:
        raise Unreadable


async def test_output_that_fails_leaves_the_others(ask):
    """Whatever it fails with: the outputs behind it are sent."""
    request, other = await ask(), await ask()
    number = (1 << 40) + 1  # no token id, and no text
    streams = {
        "number": stream_of(other, TEXTS, keeps_ids=True),
        "unreadable": stream_of(other, TEXTS),
        "unknown": SimpleNamespace(),
        "r": stream_of(request, TEXTS),
    }
    outputs = [output("number", [number]), Unanswerable(), output("unknown", [0]), output("r", [0])]

    rest, failed = _core.advance_all(outputs, streams)

    assert rest == []
    assert [request_id for request_id, _ in failed] == ["number", "unreadable", "unknown"]
    assert failed[1][1].endswith(".Unreadable")
    assert request.taken() == [b"zero"]
