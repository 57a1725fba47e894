"""The built-in templates, compared with `transformers` and with the formats that the families
publish.
"""

from pathlib import Path
from typing import Any

import pytest

import chat_templates
from openai_frontend.errors import InvalidRequest
from openai_frontend.prompting.chat_template import ChatTemplate
from tests.fast.prompting import vocabularies
from tests.medium.chat_templates import conversations
from tests.medium.chat_templates.conversations import BYE, GOLDEN, HELLO, HI, SYSTEM, TOOL

PUBLISHED = Path("tests/data/chat_templates")
NAMES = chat_templates.names()
WITH_TOOLS = ["chatml", "granite"]
IN_TURNS = ["gemma", "llama2", "mistral-instruct"]

# template -> (BOS, EOS) of families with other tokens
TOKENS = {
    "deepseek-chat": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),  # noqa: RUF001
    "gemma": ("<bos>", "<eos>"),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>"),
}


def special_tokens(name: str) -> dict[str, str]:
    """The special tokens of the family's tokenizer."""
    bos, eos = TOKENS.get(name, ("<s>", "</s>"))
    return {"bos_token": bos, "eos_token": eos}


def built_in(name: str) -> ChatTemplate:
    """The template with its family's tokens."""
    return ChatTemplate(chat_templates.read(name), special_tokens(name))


def theirs(name: str, messages: conversations.Messages, **options: Any) -> str:
    """The prompt that `transformers` renders."""
    from transformers import PreTrainedTokenizerFast  # takes seconds, in every worker

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=vocabularies.of_words(),
        chat_template=chat_templates.read(name),
        **special_tokens(name),
    )
    return str(tokenizer.apply_chat_template(messages, tokenize=False, **options))


@pytest.mark.parametrize("name", NAMES)
def test_prompt_equals_the_published_format(name: str) -> None:
    """The comparison covers every character of two turns with a system message."""

    published = (PUBLISHED / f"{name}.txt").read_text(encoding="utf-8")
    assert published == built_in(name).render(GOLDEN) + "\n"  # the file ends with a newline


@pytest.mark.parametrize("generation_prompt", [True, False])
@pytest.mark.parametrize("conversation", conversations.PLAIN)
@pytest.mark.parametrize("name", NAMES)
def test_transformers_renders_the_same(
    name: str, conversation: str, generation_prompt: bool
) -> None:
    """The template environment equals Hugging Face's for any chat."""

    sent, given = conversations.PLAIN[conversation]
    ours = built_in(name).render(sent, add_generation_prompt=generation_prompt)
    assert theirs(name, given, add_generation_prompt=generation_prompt) == ours


@pytest.mark.parametrize("conversation", conversations.OPEN)
@pytest.mark.parametrize("name", NAMES)
def test_transformers_continues_the_same_message(name: str, conversation: str) -> None:
    """The prompt ends with the assistant's text, without an end token."""

    messages = conversations.OPEN[conversation]
    ours = built_in(name).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert theirs(name, messages, continue_final_message=True) == ours


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_transformers_renders_the_same_tools(name: str) -> None:
    """The chat has definitions, a call and its result. The arguments arrive as text."""

    ours = built_in(name).render(conversations.called('{"city": "Köln"}'), tools=[TOOL])
    given = conversations.called({"city": "Köln"})
    assert theirs(name, given, tools=[TOOL], add_generation_prompt=True) == ours


def test_transformers_renders_the_same_documents() -> None:
    """Granite reads documents in a turn of their own."""

    documents = [{"title": "a", "text": "Ä <x>"}, {"title": "b", "text": "B"}]
    ours = built_in("granite").render([HI], documents=documents)
    assert theirs("granite", [HI], documents=documents, add_generation_prompt=True) == ours


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(WITH_TOOLS)))
def test_family_without_tools_refuses_tool_messages(name: str) -> None:
    """The template never drops a call or its result silently."""

    messages = conversations.called("{}")
    template = built_in(name)
    with pytest.raises(InvalidRequest, match="no tools"):
        template.render(messages[:3])
    with pytest.raises(InvalidRequest, match="no tools"):
        template.render([*GOLDEN[:3], messages[3]])


@pytest.mark.parametrize("name", IN_TURNS)
@pytest.mark.parametrize("messages", [[HELLO, HI], [HI, BYE], [HI, HELLO, HELLO], [HI, SYSTEM]])
def test_family_with_strict_turns_refuses_other_orders(
    name: str, messages: conversations.Messages
) -> None:
    """For example, its format cannot express two questions in a row."""

    with pytest.raises(InvalidRequest) as refused:
        built_in(name).render(messages)
    assert refused.value.param == "messages"


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(IN_TURNS)))
def test_other_families_accept_any_order(name: str) -> None:
    """The prompt has both questions and the system message."""

    text = built_in(name).render([HI, BYE, SYSTEM])
    assert [part for part in ("Hi", "Bye", "Be brief.") if part in text] == [
        "Hi", "Bye", "Be brief.",
    ]  # fmt: skip


def test_documented_families_have_a_template() -> None:
    listed = Path("docs/chat-templates.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"| `{name}` |" not in listed] == []
