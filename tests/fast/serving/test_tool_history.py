from typing import Any

import pytest

from openai_frontend.serving.request.template_inputs import for_templates

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
PLAIN: list[dict[str, Any]] = [
    {"role": "developer", "content": "x"},
    USER,
    {"role": "assistant", "content": "x", "tool_calls": None},
    {"role": "tool", "content": "1", "tool_call_id": "c"},
]


def test_plain_messages_stay_the_same_objects():
    assert all(a is b for a, b in zip(PLAIN, for_templates(PLAIN), strict=True))


def test_function_calls_stay_unchanged():
    message = {"role": "assistant", "content": None, "tool_calls": [CALL]}

    assert [message] == for_templates([message])


def test_custom_call_becomes_a_call_of_a_function_with_one_text():
    """The model saw the tool as that function."""
    custom = {"id": "c", "type": "custom", "custom": {"name": "f", "input": 'a"é'}}

    [message] = for_templates([{"role": "assistant", "tool_calls": [custom]}])

    function = {"name": "f", "arguments": '{"input":"a\\"é"}'}
    assert [{"id": "c", "type": "function", "function": function}] == message["tool_calls"]


def test_legacy_function_call_becomes_a_tool_call():
    """The function results that follow get its id."""
    call = {"role": "assistant", "content": None, "function_call": CALL["function"]}
    result = {"role": "function", "name": "f", "content": "1"}

    _, called, answered, stray = for_templates([USER, call, result, {**result, "name": "other"}])

    assert called == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{**CALL, "id": "call00001"}],
    }
    assert {**result, "role": "tool", "tool_call_id": "call00001"} == answered
    assert stray["tool_call_id"] == "call00003"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_has_both_names(name):
    """Each template reads one of the two."""
    [message] = for_templates([{"role": "assistant", "content": "x", name: "hm"}])

    assert message == {
        "role": "assistant",
        "content": "x",
        "reasoning": "hm",
        "reasoning_content": "hm",
    }


@pytest.mark.parametrize(("content", "thinking"), [(None, "hm"), ("", "hm"), ("x", None)])
def test_reasoning_before_a_call_is_thinking(content, thinking):
    """gpt-oss's template uses this name, and has it in place of the content."""
    call = {"role": "assistant", "content": content, "reasoning": "hm", "tool_calls": [CALL]}

    [message] = for_templates([call])

    assert thinking == message.get("thinking")
