"""A dialect of its own, whose events are numbered: what another API has to write, and no more."""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import orjson
import pytest

from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import CompletionDelta, TokenLogprobs
from openai_frontend.parsing.events import (
    ContentText,
    Event,
    ReasoningText,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from openai_frontend.parsing.output_format import OutputFormat
from openai_frontend.parsing.registry import BY_NAME
from openai_frontend.serving.conversation import Conversation, ConversationPlan, Conversations
from openai_frontend.serving.error_reply import ErrorReply
from openai_frontend.serving.output.collect import collect
from openai_frontend.serving.output.completion_job import CompletionJob, OutputEnd, Usage
from openai_frontend.serving.output.stream import StreamDriver, UnreportedTokens
from openai_frontend.serving.request.limits import InferenceLimits
from openai_frontend.serving.request.tools import OfferedTools
from openai_frontend.text_relay import NUMBER_SLOT, AddToken, EventNumbers, FrameWriter, TextRelay
from schemas.sampling import SamplingFields
from tests.fast.serving.fake_model import FakeModel, admission, last

CONVERSATIONS = Conversations(InferenceLimits(max_prompt_tokens=100), admission())
NAMES = {"messages": "input", "temperature": "heat", "max_tokens": "room"}


def conversation(text: str, **fields: Any) -> Conversation:
    """What the dialect makes of a text and its own fields."""
    offered = OfferedTools()
    offered.add_function("now", None, "tools[0]", description=None, strict=False)
    of_names = {name: field for field, name in NAMES.items()}
    sampling = {of_names.get(name, name): value for name, value in fields.items()}
    tools = offered.tools("auto", offered.names, parallel=True)
    plan = ConversationPlan(tools=tools, max_tokens=sampling.get("max_tokens"), names=NAMES)
    return Conversation(
        id_prefix="numbered",
        plan=plan,
        fields=SamplingFields(stream=True, **sampling),
        messages=[{"role": "user", "content": text}],
    )


class NumberedWriter:
    """One line of JSON for each event."""

    def __init__(self) -> None:
        self.numbers = EventNumbers()

    def _line(self, *values: Any) -> bytes:
        return orjson.dumps([self.numbers.take(), *values]) + b"\n"

    def relayed(self, choice: int, events: Sequence[Event]) -> None:
        raise AssertionError("it does not repeat the output")

    def keep_alive(self) -> bytes | None:
        return self._line("waits")

    def failure(self, failure: ErrorReply, unsent: bytes) -> bytes:
        return unsent + self._line("failed", failure.status)

    def opening(self) -> bytes:
        return self._line("begins")

    def text(self, choice: int, text: str) -> bytes:
        return self.events(choice, [ContentText(text)], None)

    def events(
        self, choice: int, events: Sequence[Event], tokens: UnreportedTokens | None
    ) -> bytes:
        return b"".join([self._line(*written(event)) for event in events])

    def finish(self, choice: int, end: OutputEnd, tokens: UnreportedTokens | None) -> bytes:
        return self._line("ends", end.reason)

    def closing(self, usage: Usage) -> bytes:
        return self._line("usage", usage.prompt_tokens, usage.completion_tokens)

    def count(self, usage: Usage) -> None:
        raise AssertionError("the request does not ask for it")

    def prompt_logprobs(self, choice: int, positions: Sequence[TokenLogprobs | None]) -> bytes:
        return b""

    def around(
        self, choice: int, event: ContentText | ReasoningText | ToolCallArguments
    ) -> list[bytes] | None:
        kind, _ = written(event)
        return [b"[" + NUMBER_SLOT + b"," + orjson.dumps(kind) + b",", b"]\n"]

    def around_logprobs(self, choice: int) -> None:
        return None

    def on_token(self, choice: int, known: AddToken) -> None:
        raise AssertionError("nothing is relayed with log probabilities")


def written(event: Event) -> list[Any]:
    match event:
        case ContentText(text):
            return ["text", text]
        case ReasoningText(text):
            return ["thought", text]
        case ToolCallStart(name=name):
            return ["calls", name]
        case ToolCallArguments(text=text):
            return ["arguments", text]
        case ToolCallEnd():
            return ["called"]
    raise AssertionError(event)


class NumberedFold:
    """The same events as a list."""

    def __init__(self) -> None:
        self.events: list[list[Any]] = []

    def add(self, events: Iterable[Event]) -> None:
        self.events += [written(event) for event in events]


PIECES = ["<think>hm", "m</think>", "It", " is", '<tool_call>{"name": "now", ',
          '"arguments": {}}', "</tool_call>"]  # fmt: skip


def calling_model() -> FakeModel:
    deltas = [CompletionDelta(piece, [ord(each) for each in piece]) for piece in PIECES]
    return FakeModel(
        [*([delta] for delta in deltas), [last(completion=7)]],
        output_format=OutputFormat(family=BY_NAME["qwen3"]),
        template_variables=frozenset({"tools"}),
    )


async def streamed(job: CompletionJob) -> list[list[Any]]:
    driver = StreamDriver(job, NumberedWriter())
    sent = driver.start()
    async with aclosing(job.bursts()) as bursts:
        async for burst in bursts:
            for choice, deltas in burst:
                sent += driver.feed(choice, deltas)
    return [orjson.loads(line) for line in (sent + driver.finish()).splitlines()]


async def test_another_dialect_streams_reasoning_text_and_calls():
    """Its events have rising numbers, and the usage at the end is the model's."""
    model: Any = calling_model()
    job = await CONVERSATIONS.job(conversation("hi", heat=0.5), model)

    lines = await streamed(job)

    assert job.id.startswith("numbered-")
    assert model.requests[0].sampling_params.temperature == 0.5
    assert [number for number, *_ in lines] == list(range(len(lines)))
    assert [line[1:] for line in lines] == [
        ["begins"],
        ["thought", "hm"],
        ["thought", "m"],
        ["text", "It"],
        ["text", " is"],
        ["calls", "now"],
        ["arguments", "{}"],
        ["called"],
        ["ends", "calls"],
        ["usage", 3, 7],
    ]


async def test_relayed_text_of_another_dialect_is_numbered():
    """The relay takes numbers from the dialect's writer and fills them in."""
    relay, offered = TextRelay(), []

    def open_relay(
        before: bytes, after: bytes, write: FrameWriter, numbers: EventNumbers | None
    ) -> Callable[[], None]:
        offered.append((before, after, numbers))
        return lambda: None

    relay.offer(open_relay)
    job = await CONVERSATIONS.job(conversation("hi"), FakeModel([]))  # type: ignore[arg-type]
    [request] = job.requests
    job.requests = [replace(request, relay=relay)]
    job.parser = None
    writer = NumberedWriter()

    assert StreamDriver(job, writer).relay(lambda _: False) is not None
    assert offered == [(b"[" + NUMBER_SLOT + b',"text",', b"]\n", writer.numbers)]


async def test_whole_answer_of_another_dialect_is_the_fold_of_the_same_events():
    """Texts may be split in another way."""
    job = await CONVERSATIONS.job(conversation("hi"), calling_model())  # type: ignore[arg-type]

    [choice], usage = await collect(job, NumberedFold)

    assert choice.output.events == [
        ["thought", "hm"],
        ["thought", "m"],
        ["text", "It"],
        ["text", " is"],
        ["calls", "now"],
        ["arguments", "{}"],
        ["called"],
    ]
    assert (choice.end.reason, usage.completion_tokens) == ("calls", 7)


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("x" * 101, {}, "", "input"),
    ("hi", {"heat": 0.5}, "temperature", "heat"),
    ("hi", {"room": 9}, "max_tokens", "room"),
    ("hi", {"min_p": 0.5}, "min_p", "min_p"),  # the same name in both
]


@pytest.mark.parametrize(("text", "fields", "unsupported", "param"), REFUSED)
async def test_errors_name_the_fields_of_the_dialect(text, fields, unsupported, param):
    """They come from code that knows only OpenAI's names."""
    model: Any = FakeModel(unsupported=frozenset([unsupported]))
    model.output_format = OutputFormat(family=BY_NAME["qwen3"])

    with pytest.raises(InvalidRequest) as refused:
        await CONVERSATIONS.job(conversation(text, **fields), model)

    assert refused.value.param == param
    quoted = re.findall(r"'(\w+)'", refused.value.message)  # a limit on the prompt quotes none
    assert set(quoted) <= {param}


async def test_engine_gets_the_names_of_the_dialect():
    """With them, an engine's refusal names the client's field."""
    job = await CONVERSATIONS.job(conversation("hi"), calling_model())  # type: ignore[arg-type]

    names = job.requests[0].field_names
    assert (names["temperature"], names["extra_args"]) == ("heat", "vllm_xargs")
