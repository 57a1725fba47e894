"""Parts of a chat's messages."""

from typing import Any

import pytest

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.template_inputs import template_messages

IMAGE = {"url": "data:image/png;base64,AA=="}


def read(**part: Any) -> list[str]:
    """The types of the parts that the chat template gets."""
    message: Any = {"role": "user", "content": [{"type": "text", "text": "hi"}, part]}
    (read,) = template_messages([message], FieldPolicy("ignore"), [])
    return [each["type"] for each in read["content"]]


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ({"type": "text", "text": "hi", "image_url": IMAGE}, "image_url"),
        (
            {"type": "text", "text": "hi", "input_audio": {"data": "", "format": "wav"}},
            "input_audio",
        ),
        ({"type": "text", "text": "hi", "file": {"file_id": "f"}}, "file"),
        ({"type": "text", "text": "hi", "video_url": {"url": "data:,"}}, "video_url"),
        ({"type": "image_url", "image_url": IMAGE, "text": "hi"}, "text"),
        ({"type": "refusal", "refusal": "no", "text": "hi"}, "text"),
    ],
)
def test_content_of_another_type_is_refused_by_name(part, name):
    """The model would not see it."""
    with pytest.raises(InvalidRequest) as refused:
        read(**part)

    assert refused.value.param == f"messages[0].content[1].{name}"


@pytest.mark.parametrize(
    "more", [{"image_url": None, "refusal": None}, {"cache_control": {"type": "ephemeral"}}]
)
def test_other_members_of_a_part_are_accepted(more):
    """Clients send null or an empty text for the members that another type has."""
    assert read(type="text", text="hi", **more) == ["text", "text"]
    assert read(type="image_url", image_url=IMAGE, text="") == ["text", "image"]


AUDIO = {"data": "AA==", "format": "wav"}
UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"content": [{"type": "text", "text": "hi", "foo": 1}]}, "content[0].foo"),
    ({"content": [{"type": "text", "text": "hi", "uuid": "u"}]}, "content[0].uuid"),
    ({"content": [{"type": "refusal", "refusal": "no", "foo": 1}]}, "content[0].foo"),
    ({"content": [{"type": "image_url", "image_url": IMAGE, "foo": 1}]}, "content[0].foo"),
    (
        {"content": [{"type": "image_url", "image_url": {**IMAGE, "bar": 1}}]},
        "content[0].image_url.bar",
    ),
    (
        {"content": [{"type": "input_audio", "input_audio": {**AUDIO, "bar": 1}}]},
        "content[0].input_audio.bar",
    ),
    (
        {"content": [{"type": "audio_url", "audio_url": {"url": "data:,", "bar": 1}}]},
        "content[0].audio_url.bar",
    ),
    ({"function_call": {"name": "f", "arguments": "", "foo": 1}}, "function_call.foo"),
]


@pytest.mark.parametrize(("fields", "name"), UNKNOWN)
def test_unknown_member_within_a_message_follows_the_setting(fields, name, caplog):
    """`unknown_fields` refuses or reports it, as a member of the request. A log names it once,
    wherever it is.
    """
    message: Any = {"role": "assistant", **fields}
    with pytest.raises(InvalidRequest) as refused:
        template_messages([message], FieldPolicy("reject"), [])
    template_messages([message, message], FieldPolicy("warn"), [])

    assert (refused.value.param, refused.value.code) == (f"messages[0].{name}", "unknown_parameter")
    assert [each.args[0] for each in caplog.records] == [f"messages[].{name}".replace("0", "")]


def test_known_members_of_a_part_pass_with_unknown_fields_reject():
    parts = [
        {"type": "text", "text": "hi", "image_url": None, "file": None},
        {"type": "image_url", "image_url": {**IMAGE, "detail": "low"}, "uuid": "u", "text": ""},
        {"type": "image_url", "image_url": "data:,", "uuid": None},
        {"type": "input_audio", "input_audio": None, "uuid": "u"},
    ]
    message: Any = {"role": "user", "content": parts}

    assert len(template_messages([message], FieldPolicy("reject"), [])) == 1
