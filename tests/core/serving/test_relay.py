"""Which answers use the text relay, and the equality of relayed and normal streams."""

from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_frontend.generation import CompletionDelta, GenerationRequest, SamplingParams
from openai_frontend.request_context.context import RequestContext
from openai_frontend.serving.dialects import chat, completions
from openai_frontend.serving.output.completion_job import CompletionJob
from openai_frontend.serving.request.response_options import ResponseOptions
from openai_frontend.text_relay import EventNumbers, FrameWriter, TextRelay
from tests import mock_models
from tests.fast.serving.fake_model import FakeModel, admission, feed, last

KINDS = {"chat": chat.chunks, "completions": completions.chunks}


class Way:
    """A relay that frames the texts given to `put`."""

    def __init__(self) -> None:
        self.relay = TextRelay()
        self.relay.offer(self._open)
        self.opened = 0
        self.resumed = 0

    def _open(
        self, before: bytes, after: bytes, write: FrameWriter, numbers: EventNumbers | None
    ) -> Callable[[], None]:
        assert numbers is None  # chunks have no numbers
        self.opened += 1
        self._around, self._write = (before, after), write
        return self._resume

    def _resume(self) -> None:
        self.resumed += 1

    def put(self, text: str) -> bool:
        before, after = self._around
        return self._write(before + orjson.dumps(text) + after)


def answer(relay: TextRelay | None, choices: int = 1, **fields: Any) -> CompletionJob:
    return CompletionJob(
        id="id",
        model=FakeModel(),  # type: ignore[arg-type]
        context=RequestContext("req_1"),
        admission=admission(),
        requests=[
            GenerationRequest(request_id=str(i), prompt_token_ids=[1, 2], relay=relay)
            for i in range(choices)
        ],
        n=choices,
        **fields,
    )


def dropped(frame: bytes) -> bool:
    raise AssertionError("nothing is written")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("include_usage", [False, True])
@given(
    pieces=st.lists(st.tuples(st.text(min_size=1, max_size=4), st.booleans()), max_size=8),
    end=st.text(max_size=2),
)
def test_relayed_stream_equals_the_normal_stream(kind, include_usage, pieces, end):
    """The bytes are equal for any mix of relayed and fed texts."""
    told, way = answer(None, options=ResponseOptions(include_usage=include_usage)), Way()
    relayed = answer(way.relay, options=ResponseOptions(include_usage=include_usage))
    long, short = KINDS[kind](told), KINDS[kind](relayed)
    sent = [long.start(), short.start()]

    def write(frame: bytes) -> bool:
        sent[1] += frame
        return False

    assert short.relay(write) is not None
    for text, is_short in pieces:
        sent[0] += feed(long, told, 0, [CompletionDelta(text)])
        if is_short:
            way.put(text)
        else:
            sent[1] += feed(short, relayed, 0, [CompletionDelta(text)])
    sent[0] += feed(long, told, 0, [last(end)]) + long.finish()
    sent[1] += feed(short, relayed, 0, [last(end)]) + short.finish()

    assert timeless(sent[0]) == timeless(sent[1])


def timeless(stream: bytes) -> list[bytes]:
    """The events, without the creation time of each answer."""
    events = [event.removeprefix(b"data: ") for event in stream.split(b"\n\n")]
    return [
        orjson.dumps(orjson.loads(event) | {"created": 0}) if event[:1] == b"{" else event
        for event in events
    ]


LONG: dict[str, ResponseOptions] = {
    "log probabilities": ResponseOptions(logprobs=0),
    "token ids": ResponseOptions(token_ids=True),
    "padding": ResponseOptions(obfuscate=True),
    "an interval": ResponseOptions(interval=2),
    "counts so far": ResponseOptions(include_usage=True, continuous_usage=True),
}


@pytest.mark.parametrize("details", LONG.values(), ids=LONG)
@pytest.mark.parametrize("kind", KINDS)
def test_frames_with_more_than_text_are_not_relayed(kind, details):
    """The stream feeds each delta if its frames hold or count more than text."""
    way = Way()

    assert KINDS[kind](answer(way.relay, options=details)).relay(dropped) is None
    assert way.opened == 0


def test_several_choices_are_not_relayed():
    way = Way()

    assert KINDS["chat"](answer(way.relay, 2)).relay(dropped) is None
    assert way.opened == 0


@pytest.mark.parametrize("relay", [None, TextRelay()], ids=["no relay", "no offer"])
def test_stream_without_an_offer_is_not_relayed(relay):
    assert KINDS["chat"](answer(relay)).relay(dropped) is None


# ---- over the real core: what a model offers ----


def request(*, relay: TextRelay, **fields: Any) -> GenerationRequest:
    return GenerationRequest(
        request_id="r", prompt_token_ids=[1], stream=True, relay=relay, **fields
    )


OFFERED: dict[str, tuple[bool, dict[str, Any]]] = {
    "text": (True, {}),
    "sampling": (True, {"sampling_params": SamplingParams(max_tokens=5, temperature=0.0)}),
    "token ids": (False, {"return_token_ids": True}),
    "logprobs": (False, {"sampling_params": SamplingParams(logprobs=0)}),
    "logprobs by id": (False, {"sampling_params": SamplingParams(logprob_token_ids=[1])}),
    "prompt logprobs": (False, {"sampling_params": SamplingParams(prompt_logprobs=1)}),
    "the prompt alone": (False, {"sampling_params": SamplingParams(max_tokens=0)}),
}


async def test_model_offers_the_relay_for_text_only_responses(tmp_path: Path) -> None:
    mock_models.write(tmp_path, "m", tokens_per_second=1000)
    found = {}
    async with mock_models.serving(tmp_path) as registry:
        for name, (_, fields) in OFFERED.items():
            asked = request(relay=(relay := TextRelay()), **fields)
            async with aclosing(registry.get("m").generate(asked)) as bursts:
                await anext(bursts)
                found[name] = relay.take(b"", b"", lambda frame: False) is not None

    assert {name: offered for name, (offered, _) in OFFERED.items()} == found
