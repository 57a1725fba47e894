import json
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from openai_frontend.errors import InferenceFailed
from openai_frontend.generation import (
    CompletionDelta,
    GenerationRequest,
    TokenCounts,
    TokenLogprobs,
)
from openai_frontend.request_context.context import RequestContext
from openai_frontend.serving.admission.concurrency_limit import ConcurrencyLimiter
from openai_frontend.serving.admission.permit import Admission
from openai_frontend.serving.dialects import chat, completions
from openai_frontend.serving.dialects.completion_output import CompletionText
from openai_frontend.serving.dialects.response_fields import usage_fields
from openai_frontend.serving.output.collect import Collector, CompletedChoice, collect
from openai_frontend.serving.output.completion_job import CompletionJob
from openai_frontend.serving.output.stream import StreamDriver
from openai_frontend.serving.request.response_options import ResponseOptions
from schemas.usage import CompletionUsage
from tests.examples import scaled
from tests.fast.serving.fake_model import FakeModel, admission, feed, last


def answer(choices: int = 1, *, n: int | None = None, **fields: Any) -> CompletionJob:
    requests = [
        GenerationRequest(request_id=str(i), prompt_token_ids=[1, 2]) for i in range(choices)
    ]
    return CompletionJob(
        id="id",
        model=FakeModel(),  # type: ignore[arg-type]
        context=RequestContext("req_1"),
        admission=admission(),
        requests=requests,
        n=n or choices,
        **fields,
    )


def texts_of(job: CompletionJob) -> Collector[CompletionText]:
    """What gathers the texts of a job's choices."""
    return Collector(job, CompletionText)


def events(stream: bytes) -> list[Any]:
    """The parsed events of the stream; [DONE] stays text."""
    lines = stream.decode().split("\n\n")
    assert lines.pop() == ""
    payloads = [line.removeprefix("data: ") for line in lines]
    return [each if each == "[DONE]" else json.loads(each) for each in payloads]


class StreamOrder(RuleBasedStateMachine):
    """For any order of deltas, the frames keep the order that clients rely on."""

    choices = 3

    def __init__(self) -> None:
        super().__init__()
        self.job = answer(self.choices, options=ResponseOptions(include_usage=True))
        self.stream = chat.chunks(self.job)
        self.sent = self.stream.start()
        self.texts = [""] * self.choices
        self.running = set(range(self.choices))

    def feed(self, choice: int, deltas: Sequence[CompletionDelta]) -> bytes:
        written: bytes = feed(self.stream, self.job, choice, deltas)
        return written

    @precondition(lambda self: self.running)
    @rule(data=st.data(), texts=st.lists(st.sampled_from(["", "a", "\n", '"', "é"]), max_size=4))
    def burst(self, data, texts):
        choice = data.draw(st.sampled_from(sorted(self.running)))
        self.texts[choice] += "".join(texts)
        self.sent += self.feed(choice, [CompletionDelta(text) for text in texts])

    @precondition(lambda self: self.running)
    @rule(
        data=st.data(), text=st.sampled_from(["", "z"]), reason=st.sampled_from(["stop", "length"])
    )
    def end(self, data, text, reason):
        choice = data.draw(st.sampled_from(sorted(self.running)))
        self.running.discard(choice)
        self.texts[choice] += text
        self.sent += self.feed(choice, [last(text, reason)])

    @rule(choice=st.integers(0, choices - 1))
    def empty_burst(self, choice):
        self.sent += self.feed(choice, [])

    @invariant()
    def roles_come_first_and_once(self):
        roles = [
            (chunk["choices"][0]["index"], position)
            for position, chunk in enumerate(events(self.sent))
            if "role" in chunk["choices"][0]["delta"]
        ]
        assert [(i, i) for i in range(self.choices)] == roles

    @invariant()
    def text_is_complete(self):
        texts = [""] * self.choices
        for chunk in events(self.sent):
            choice = chunk["choices"][0]
            texts[choice["index"]] += choice["delta"].get("content", "")
        assert self.texts == texts

    @invariant()
    def nothing_follows_a_finish_reason(self):
        ended = set()
        for chunk in events(self.sent):
            choice = chunk["choices"][0]
            assert choice["index"] not in ended
            if choice["finish_reason"] is not None:
                ended.add(choice["index"])
        assert set(range(self.choices)) - self.running == ended

    @invariant()
    def usage_is_null(self):
        assert all(chunk["usage"] is None for chunk in events(self.sent))

    @invariant()
    def finished_is_known(self):
        assert self.stream.finished == (not self.running)

    def teardown(self):
        for choice in self.running:
            self.feed(choice, [last()])
        usage, done = events(self.stream.finish())
        assert usage["choices"] == []
        assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (3, 6)
        assert done == "[DONE]"


TestStreamOrder = StreamOrder.TestCase
TestStreamOrder.settings = settings(max_examples=scaled(50), stateful_step_count=20, deadline=None)


@given(st.lists(st.lists(st.text("ab\n", max_size=2), max_size=3), max_size=4))
def test_stream_and_complete_answer_have_the_same_text(bursts):
    told, gathered = answer(), answer()
    stream, collector = completions.chunks(told), texts_of(gathered)
    sent = stream.start()
    for burst in [*([CompletionDelta(text) for text in texts] for texts in bursts), [last("end")]]:
        sent += feed(stream, told, 0, burst)
        feed(collector, gathered, 0, burst)

    wholes, _ = collector.finish()

    assert wholes[0].output.text == "".join(chunk["choices"][0]["text"] for chunk in events(sent))


def test_continuous_usage_counts_up_to_each_chunk():
    """The field is `continuous_usage_stats`."""
    stream = chat_stream(ResponseOptions(continuous_usage=True))

    sent = stream.start() + stream.feed(
        0,
        [
            CompletionDelta("a", token_ids=[7]),
            CompletionDelta("b", token_ids=[8, 9]),
            CompletionDelta("c", token_ids=[5], finish_reason="stop", counts=TokenCounts(2, 4)),
        ],
    )

    counted = [event["usage"]["completion_tokens"] for event in events(sent)]
    assert counted == [0, 1, 3, 4, 4]
    assert {2} == {event["usage"]["prompt_tokens"] for event in events(sent)}


def test_usage_counts_a_prompt_once_for_all_its_choices():
    """For two prompts with two choices each, the usage counts four answers and two prompts."""
    job = answer(4, n=2)
    collector = texts_of(job)
    for choice, prompt in enumerate([10, 10, 20, 20]):
        feed(collector, job, choice, [last(prompt=prompt, completion=5)])

    _, usage = collector.finish()

    fields = usage_fields(usage)
    counts = (fields["prompt_tokens"], fields["completion_tokens"], fields["total_tokens"])
    assert counts == (30, 20, 50)
    assert fields["prompt_tokens_details"] == {"cached_tokens": 2}


@pytest.mark.parametrize("metrics", [None, {"kv_cache_blocks": 3}])
def test_usage_has_the_fields_of_its_schema(metrics):
    """In the schema's order, with the engine's metrics at the end."""
    job = answer(1, n=1)
    collector = texts_of(job)
    counts = TokenCounts(2, 1, metrics=metrics)
    feed(collector, job, 0, [CompletionDelta("a", finish_reason="stop", counts=counts)])

    _, usage = collector.finish()

    fields = usage_fields(usage)
    assert orjson.dumps(fields) == orjson.dumps(
        CompletionUsage(**fields).model_dump(exclude_none=True)
    )
    assert fields.get("performance_metrics") == (None if metrics is None else [metrics])


async def test_echo_puts_the_prompt_before_each_answer():
    """Streamed and complete answers agree."""
    job = answer(2, n=1, echo=["p", "q"])
    start = completions.chunks(job).start()
    whole = await completions.complete(job)

    assert [event["choices"][0]["text"] for event in events(start)] == ["p", "q"]
    assert [choice["text"] for choice in whole["choices"]] == ["pHello", "qHello"]


@pytest.mark.parametrize("reader", [completions.chunks, texts_of], ids=["stream", "whole"])
def test_answer_without_a_finish_reason_fails(reader):
    """The server does not invent a finish reason."""
    job = answer()
    ending = reader(job)
    feed(ending, job, 0, [CompletionDelta("x")])

    with pytest.raises(InferenceFailed):
        ending.finish()


def test_answer_that_the_engine_aborted_fails():
    job = answer()
    collector = texts_of(job)

    with pytest.raises(InferenceFailed):
        feed(collector, job, 0, [last(reason="abort")])


async def test_complete_answer_closes_the_generation():
    model, limiter = FakeModel(), ConcurrencyLimiter(1)
    one = CompletionJob(
        id="id",
        model=model,  # type: ignore[arg-type]
        context=RequestContext("req_1"),
        admission=Admission(limiter),
        requests=[GenerationRequest(request_id="1")],
    )

    wholes, _ = await collect(one, CompletionText)

    assert [(whole.output.text, whole.end.reason) for whole in wholes] == [("Hello", "stop")]
    assert (model.open, limiter.running) == (0, 0)


def position(token: int, logprob: float = -1.0) -> TokenLogprobs:
    return {token: {"logprob": logprob, "rank": 1, "decoded_token": chr(token)}}


def token(letter: str) -> CompletionDelta:
    return CompletionDelta(letter, [ord(letter)], logprobs=[position(ord(letter))])


def chat_stream(details: ResponseOptions, choices: int = 1) -> StreamDriver:
    return chat.chunks(answer(choices, options=details))


def test_chunk_has_the_logprobs_of_its_own_tokens():
    """A chunk without text has them too."""
    stream = chat_stream(ResponseOptions(logprobs=0))
    without_text = CompletionDelta("", [98], logprobs=[position(98)])

    sent = stream.feed(0, [token("a"), without_text, last("c")])

    told = [
        [
            entry["token"]
            for entry in (event["choices"][0]["logprobs"] or {"content": []})["content"]
        ]
        for event in events(sent)
    ]
    assert told == [["a"], ["b"], [], []]


def test_internal_logprobs_are_not_sent_to_the_client():
    """The server requests them for its own use."""
    stream = chat_stream(ResponseOptions(token_ids=True))

    [event] = events(stream.feed(0, [token("a")]))

    assert event["choices"][0]["logprobs"] is None


def test_chat_sends_prompt_token_ids_with_the_role():
    """Each answer's ids come with its text."""
    stream = chat_stream(ResponseOptions(token_ids=True), choices=2)

    sent = events(stream.start() + stream.feed(1, [token("a")]))

    assert [event.get("prompt_token_ids") for event in sent] == [[1, 2], [1, 2], None]
    assert sent[-1]["choices"][0]["token_ids"] == [97]


def test_completion_sends_prompt_token_ids_in_a_frame():
    """A completion has no opening frame, so they get one of their own."""
    stream = completions.chunks(answer(options=ResponseOptions(token_ids=True)))

    [event] = events(stream.start())

    assert event["choices"][0]["prompt_token_ids"] == [1, 2]


def test_stream_interval_merges_tokens_into_one_event():
    """No token is lost."""
    stream = chat_stream(ResponseOptions(interval=2, logprobs=0))

    sent = stream.feed(0, [*map(token, "abcde"), last("f")])

    chunks = [event["choices"][0] for event in events(sent)]
    assert [chunk["delta"].get("content", "") for chunk in chunks] == ["a", "bc", "de", "f", ""]
    assert [len((chunk["logprobs"] or {"content": []})["content"]) for chunk in chunks] == [
        1, 2, 2, 0, 0,
    ]  # fmt: skip


def test_echoed_prompt_comes_with_its_logprobs_before_the_answer():
    echoing = answer(echo=["\x01\x02"], options=ResponseOptions(logprobs=0, echo_logprobs=True))
    first = CompletionDelta("a", [97], logprobs=[position(97)])
    first.prompt_logprobs = [None, position(2)]
    stream = completions.chunks(echoing)

    sent = events(stream.start() + feed(stream, echoing, 0, [first, last()]))

    texts = [event["choices"][0]["text"] for event in sent]
    offsets = [(event["choices"][0]["logprobs"] or {}).get("text_offset") for event in sent]
    assert (texts, offsets) == (["\x01\x02", "a", ""], [[0, 1], [2], None])


async def test_echo_without_prompt_logprobs_from_the_model_fails():
    """A null would claim that the prompt has none."""
    options = ResponseOptions(logprobs=0, echo_logprobs=True)
    job = answer(echo=["p"], options=options)
    stream = completions.chunks(job)
    feed(stream, job, 0, [last()])

    with pytest.raises(InferenceFailed):
        stream.finish()
    with pytest.raises(InferenceFailed):
        await completions.complete(answer(echo=["p"], options=options))


class Piece(str):
    """A text that fails if it is concatenated, because concatenation copies it."""

    def __radd__(self, before: str) -> str:
        raise AssertionError(f"{len(before)} characters are copied")


def test_complete_answer_joins_its_text_once():
    """The texts of the deltas are joined when the answer is complete."""
    whole = CompletedChoice(CompletionText())
    for _ in range(3):
        whole.add(CompletionDelta(Piece("a"), (1,)))

    assert whole.output.text == "aaa"
