from typing import Any, cast

import pytest

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.dialects.messages.stop_reasons import stop_reason
from openai_frontend.serving.output.completion_job import OutputEnd, Usage
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.media_parts import MediaPart
from openai_frontend.serving.request.template_inputs import template_messages

FUNCTION = {"name": "f", "arguments": "{}"}
CALL = {"id": "c", "type": "function", "function": FUNCTION}
POLICY = FieldPolicy("reject")

REFUSED = [
    ({"role": "user"}, "messages[0].content", "missing_required_parameter"),
    ({"role": "user", "content": None}, "messages[0].content", "missing_required_parameter"),
    ({"role": "user", "content": []}, "messages[0].content", "empty_array"),
    (
        {"role": "user", "content": [{"type": "text"}]},
        "messages[0].content[0].text",
        "missing_required_parameter",
    ),
    (
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what is this?"},
                {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
            ],
        },
        "messages[0].content[1].type",
        "unsupported_value",
    ),
    (
        {"role": "assistant", "content": "", "audio": {"id": "a"}},
        "messages[0].audio",
        "unsupported_parameter",
    ),
    ({"role": "user", "content": "", "color": 1}, "messages[0].color", "unknown_parameter"),
    (
        {"role": "assistant", "tool_calls": [CALL, {**CALL, "color": 1}]},
        "messages[0].tool_calls[1].color",
        "unknown_parameter",
    ),
    (
        {"role": "assistant", "tool_calls": [{**CALL, "function": {**FUNCTION, "color": 1}}]},
        "messages[0].tool_calls[0].function.color",
        "unknown_parameter",
    ),
]


@pytest.mark.parametrize(("message", "param", "code"), REFUSED)
def test_invalid_message_is_refused_by_path(message, param, code):
    """Examples: a missing or an unsupported field."""

    with pytest.raises(InvalidRequest) as refused:
        template_messages([message], POLICY, [])

    assert (param, code) == (refused.value.param, refused.value.code)


def test_parts_with_media_are_collected_and_templates_get_their_place():
    """Never the client's URL. Texts around them stay as they are."""
    image = {"type": "image_url", "image_url": {"url": "data:a"}, "uuid": "u"}
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    text = {"type": "text", "text": "a"}
    messages: Any = [
        {"role": "user", "content": "b"},
        {"role": "tool", "content": [text, image, sound, text], "tool_call_id": "c"},
    ]
    parts: list[MediaPart] = []

    rendered = template_messages(messages, POLICY, parts)

    places = "messages[1].content[1]", "messages[1].content[2]"
    assert parts == [MediaPart(image, places[0]), MediaPart(sound, places[1])]
    assert rendered[0] is messages[0]
    assert rendered[1] == {
        **messages[1],
        "content": [text, {"type": "image"}, {"type": "audio"}, text],
    }


def test_custom_call_beside_a_function_call_keeps_its_name_and_input():
    custom = {"id": "c", "type": "custom", "custom": {"name": "sh", "input": "ls"}}
    message: Any = {"role": "assistant", "function_call": FUNCTION, "tool_calls": [custom]}
    [sent] = template_messages([message], POLICY, [])
    first, second = sent["tool_calls"]

    assert first["function"] == {"name": "sh", "arguments": '{"input":"ls"}'}
    assert second["function"] == FUNCTION


def test_unknown_field_does_not_reach_the_template():
    """The policy for unknown fields drops it."""
    message: Any = {"role": "user", "content": "hi", "color": 1}

    assert template_messages([message], FieldPolicy("ignore"), []) == [
        {"role": "user", "content": "hi"}
    ]


@pytest.mark.parametrize("stopped_by", [None, "###", 7])
def test_call_in_which_the_output_stops_is_not_offered_as_complete(stopped_by):
    """Also if a stop string is in its arguments: clients would run what they have of them."""
    end = OutputEnd("stop", stopped_by)

    found = stop_reason(end, Usage(), cast("Any", None), unfinished=True)

    assert found["stop_reason"] == "max_tokens"
