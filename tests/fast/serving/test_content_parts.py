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
