"""Items of a response from the events of its output."""

import pytest

from openai_frontend.parsing.events import (
    ContentText,
    Event,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from openai_frontend.serving.dialects.responses.output_items import ItemForm, OutputItems
from openai_frontend.serving.dialects.responses.tool_list import ToolName, ToolNames

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
