"""Items of a response from the events of its output."""

from contextlib import aclosing

import orjson
import pytest

from openai_frontend.generation import CompletionDelta
from openai_frontend.parsing.events import (
    MAX_ARGUMENTS,
    ContentText,
    Event,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from openai_frontend.parsing.output_format import OutputFormat
from openai_frontend.parsing.registry import BY_NAME
from openai_frontend.serving.dialects.responses.output_items import ItemForm, OutputItems
from openai_frontend.serving.dialects.responses.tool_list import ToolName, ToolNames
from openai_frontend.serving.dialects.responses.writer import complete, events
from tests.fast.serving.fake_model import FakeModel
from tests.fast.serving.test_responses_reading import READ, prepared
from tests.response_rules import named

BROKEN: list[Event] = [
    ToolCallStart(0, "call_1", "f"),
    ToolCallArguments(0, '{"a": '),
    ToolCallEnd(0, complete=False),
]


def items(*events: Event, complete: bool = True) -> list[tuple[str, str]]:
    """Type and status of each item."""
    names = ToolNames()
    names.add(ToolName("tool_search", "tool_search"))
    output = OutputItems(ItemForm(id="1", names=names))
    output.add(events)
    output.finish(complete=complete)
    return [(item["type"], item["status"]) for item in output.done]


@pytest.mark.parametrize(("complete", "status"), [(True, "completed"), (False, "incomplete")])
def test_broken_call_is_incomplete_only_if_the_output_was_cut(complete, status):
    """Otherwise its arguments are what the model wrote, as in chats."""
    assert items(*BROKEN, complete=complete) == [("function_call", status)]


def test_text_after_a_broken_call_is_a_message():
    expected = [("function_call", "completed"), ("message", "completed")]
    assert items(*BROKEN, ContentText("Sorry.")) == expected


@pytest.mark.parametrize("arguments", ["", "{", "3", '"text"', "[1]"])
def test_arguments_of_a_search_are_always_an_object(arguments):
    names = ToolNames()
    names.add(ToolName("tool_search", "tool_search"))
    output = OutputItems(ItemForm(id="1", names=names))
    output.add([ToolCallStart(0, "call_1", "tool_search"), ToolCallArguments(0, arguments)])
    output.finish(complete=True)
    assert [item["arguments"] for item in output.done] == [{}]


def test_output_of_nothing_is_an_empty_message():
    assert items() == [("message", "completed")]
    assert items(complete=False) == []


@pytest.mark.parametrize("parallel", [True, False])
async def test_arguments_that_are_too_long_end_the_response(parallel):
    """OpenAI's reasons are two, and clients with strict types know no other."""
    call = '<tool_call>{"name": "read", "arguments": {"a": "' + "x" * MAX_ARGUMENTS
    asked = {"tools": [READ], "parallel_tool_calls": parallel}

    def model() -> FakeModel:
        return FakeModel(
            [[CompletionDelta(call)]],
            output_format=OutputFormat(family=BY_NAME["qwen3"]),
            template_variables=frozenset({"tools"}),
        )

    whole = orjson.loads(await complete(await prepared(target=model(), **asked)))
    response = await prepared(target=model(), stream=True, **asked)
    driver = events(response)
    sent = driver.start()
    async with aclosing(response.job.bursts()) as bursts:
        async for burst in bursts:
            sent += b"".join(driver.feed(choice, deltas) for choice, deltas in burst)
    *_, last, _, _ = (sent + driver.finish()).split(b"\n\n")
    streamed = orjson.loads(named(last)[1])["response"]

    for answer in (whole, streamed):
        assert answer["status"] == "incomplete"
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
        assert [item["status"] for item in answer["output"]] == ["incomplete"]
