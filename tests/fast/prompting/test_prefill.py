"""Chats whose last message the model continues; tests/medium/chat_templates has real templates."""

from typing import Any

import pytest

from openai_frontend.errors import InvalidRequest
from openai_frontend.prompting.chat_template import ChatTemplate

USER = {"role": "user", "content": "a"}
ONE_PART = [{"type": "text", "text": "b"}]
TWO_PARTS = [*ONE_PART, {"type": "text", "text": "c "}, {"type": "image"}]

AS_IT_IS = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
TRIMS = "{% for m in messages %}[{{ m.content | trim }} ]{% endfor %}"
PARTS = "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}"
DROPS = "{{ messages[0].content }}{{ messages | length }}"


def rendered(source: str, content: Any) -> str:
    messages = [USER, {"role": "assistant", "content": content}]
    return ChatTemplate(source, {}).render(
        messages, add_generation_prompt=False, continue_final_message=True
    )


@pytest.mark.parametrize("source", [AS_IT_IS, TRIMS])
@pytest.mark.parametrize("content", ["b", "b ", " b\n\n", "", "[a]", "left-open-5e1c b"])
def test_prompt_ends_as_in_transformers(source: str, content: str) -> None:
    """The template may trim text, and the text may look like the mark."""

    messages = [USER, {"role": "assistant", "content": content}]
    # takes seconds, in every worker
    from transformers.utils.chat_template_utils import render_jinja_template

    theirs, _ = render_jinja_template([messages], chat_template=source, continue_final_message=True)
    assert theirs[0] == rendered(source, content)


@pytest.mark.parametrize(("content", "text"), [(ONE_PART, "<a><b"), (TWO_PARTS, "<a><b><c ")])
def test_last_text_part_is_continued(content: list[dict[str, str]], text: str) -> None:
    """Later parts are dropped."""

    assert text == rendered(PARTS, content)


def test_client_message_is_not_modified() -> None:
    """The mark is added to a copy."""

    content = [{"type": "text", "text": "b"}]
    rendered(PARTS, content)
    assert content == [{"type": "text", "text": "b"}]


@pytest.mark.parametrize("source", [DROPS, "{{ messages[-1].role }}"])
def test_message_dropped_by_the_template_is_refused(source: str) -> None:
    """Some templates remove text that looks like reasoning, so nothing is left to continue."""

    with pytest.raises(InvalidRequest, match="drops the last message") as refused:
        rendered(source, "b")
    assert refused.value.param == "continue_final_message"


@pytest.mark.parametrize("content", [[], [{"type": "image"}]])
def test_message_without_text_is_refused(content: list[dict[str, str]]) -> None:
    with pytest.raises(InvalidRequest, match="no text") as refused:
        rendered(PARTS, content)
    assert refused.value.param == "continue_final_message"


def test_empty_list_of_messages() -> None:
    with pytest.raises(InvalidRequest, match="no text"):
        ChatTemplate(AS_IT_IS, {}).render([], continue_final_message=True)
