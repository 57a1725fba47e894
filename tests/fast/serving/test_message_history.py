"""Anthropic's blocks as messages of chat templates."""

import base64
from typing import Any

import pytest

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.dialects.messages.history import read_history
from openai_frontend.serving.request.sealed_text import UNENCRYPTED, Unsealer

TEXT = {"type": "text", "text": "hi"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
PLACE = {"type": "image"}
USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}
CALL = {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def result(content: Any = None, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **fields}


def document(source: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "document", "source": source, **fields}


SAID = {"role": "user", "content": "hi"}
ANSWER = {"role": "tool", "tool_call_id": "toolu_1"}
HISTORIES: dict[str, tuple[list[Any], list[Any]]] = {
    "a text": ([{"role": "user", "content": "hi"}], [SAID]),
    "blocks of text": ([user(TEXT, TEXT)], [{"role": "user", "content": "hi\nhi"}]),
    "adjacent messages": ([SAID, user(TEXT)], [{"role": "user", "content": "hi\nhi"}]),
    "an image": ([user(TEXT, IMAGE)], [{"role": "user", "content": [TEXT, PLACE]}]),
    "a system message in between": (
        [SAID, {"role": "system", "content": "be kind"}, SAID],
        [SAID, {"role": "system", "content": "be kind"}, SAID],
    ),
    "a document": (
        [user(document({"type": "text", "data": "x"}, title="T", context="C"))],
        [{"role": "user", "content": "T\nC\nx"}],
    ),
    "a document of blocks": (
        [user(document({"type": "content", "content": [TEXT, IMAGE]}))],
        [{"role": "user", "content": [TEXT, PLACE]}],
    ),
    "a document of encoded text": (
        [user(document({"type": "base64", "media_type": "text/plain",
                        "data": base64.b64encode("é".encode()).decode()}))],
        [{"role": "user", "content": "é"}],
    ),
    "a search result": (
        [user({"type": "search_result", "source": "s", "title": "T", "content": [TEXT]})],
        [{"role": "user", "content": "T (s)\nhi"}],
    ),
    "a call and its result": (
        [SAID, assistant(TEXT, USE), user(TEXT, result("1"))],
        [SAID, {"role": "assistant", "content": "hi", "tool_calls": [CALL]},
         {**ANSWER, "content": "1", "name": "f"}, SAID],
    ),
    "a result without a call": ([user(result("1"))], [{**ANSWER, "content": "1"}]),
    "an empty result": ([user(result())], [{**ANSWER, "content": ""}]),
    "a failed call": (
        [user(result([TEXT, TEXT], is_error=True))], [{**ANSWER, "content": "Error: hi\nhi"}],
    ),
    "an image as a result": (
        [user(result([TEXT, IMAGE]), TEXT)],
        [{**ANSWER, "content": "hi\n[image]"}, {"role": "user", "content": [PLACE, TEXT]}],
    ),
    "a found tool": (
        [user(result([{"type": "tool_reference", "tool_name": "f"}]))],
        [{**ANSWER, "content": "[tool f]"}],
    ),
    "reasoning of another server": (
        [SAID, assistant({"type": "thinking", "thinking": "hm", "signature": "EqQB"}, TEXT), SAID],
        [SAID, {"role": "assistant", "content": "hi", "reasoning_content": "hm",
                "reasoning": "hm"}, SAID],
    ),
    "hidden reasoning of ours": (
        [
            SAID,
            assistant({"type": "thinking", "thinking": "", "signature": UNENCRYPTED("hm")}),
            SAID,
        ],
        [SAID, {"role": "assistant", "content": "", "reasoning_content": "hm",
                "reasoning": "hm"}, SAID],
    ),
    "encrypted reasoning": (
        [SAID, assistant({"type": "redacted_thinking", "data": "x"}, TEXT), SAID],
        [SAID, {"role": "assistant", "content": "hi"}, SAID],
    ),
    "a server's tool": (
        [SAID, assistant(
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search",
             "input": {"query": "x"}},
            {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1",
             "content": [{"url": "u", "encrypted_content": "e"}]},
        ), SAID],
        [SAID, {"role": "assistant", "content":
                '[server_tool_use {"name":"web_search","input":{"query":"x"}}]'
                '[web_search_tool_result {"content":[{"url":"u"}]}]'}, SAID],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("messages", "expected"), HISTORIES.values(), ids=HISTORIES)
def test_history_in_the_words_of_templates(messages, expected):
    history = read_history(messages, None)

    assert history.messages == expected
    assert history.continued is None


SYSTEMS: list[tuple[Any, list[Any]]] = [
    ("be kind", [{"role": "system", "content": "be kind"}]),
    ([{"type": "text", "text": "be"}, TEXT], [{"role": "system", "content": "be\nhi"}]),
    ([{"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1"}, TEXT],
     [{"role": "system", "content": "hi"}]),
    ([{"type": "text", "text": "x-anthropic-billing-header: 1"}], []),
    ("", []),
    (None, []),
]  # fmt: skip


@pytest.mark.parametrize(("system", "expected"), SYSTEMS)
def test_system_blocks_without_the_billing_header(system, expected):
    """It differs by session, and would keep every prompt from the prefix cache."""
    assert read_history([SAID], system).messages == [*expected, SAID]


CONTINUED: list[tuple[list[Any], Any, int]] = [
    ([SAID, {"role": "assistant", "content": "The best"}], "The best", 2),
    ([SAID, assistant(TEXT, TEXT)], "hihi", 2),
    ([SAID, assistant()], None, 1),
    ([SAID, assistant({"type": "thinking", "thinking": "hm"})], None, 1),
    ([SAID, assistant(TEXT, USE)], None, 2),
]


@pytest.mark.parametrize(("messages", "text", "count"), CONTINUED)
def test_last_text_of_the_assistant_is_continued(messages, text, count):
    """An empty turn is what the output begins; a call ends its turn."""
    history = read_history(messages, None)

    assert (history.continued, len(history.messages)) == (text, count)


def test_images_keep_their_order_and_their_places():
    """The images of results come first, as in the messages."""
    url = {"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}

    history = read_history([user(IMAGE, result([url]))], None)

    urls = [each.part["image_url"]["url"] for each in history.media]
    assert urls == ["https://a/b.png", "data:image/png;base64,AAAA"]
    assert [each.place for each in history.media] == [
        "messages[0].content[1].content[0]",
        "messages[0].content[0]",
    ]


PDF = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
REFUSED: list[tuple[Any, str]] = [
    (user(), "messages[0].content"),
    (user(document(PDF)), "messages[0].content[0].source.media_type"),
    (user(document({"type": "url", "url": "x"})), "messages[0].content[0].source"),
    (user({**TEXT, "source": IMAGE["source"]}), "messages[0].content[0].source"),
    (user(TEXT, {**IMAGE, "text": "hi"}), "messages[0].content[1].text"),
    (user(result([{**IMAGE, "text": "hi"}])), "messages[0].content[0].content[0].text"),
    (user(document({"type": "file"})), "messages[0].content[0].source"),
    (user({"type": "image", "source": {"type": "file"}}), "messages[0].content[0].source"),
    (user(document({**PDF, "media_type": "text/plain", "data": "?"})),
     "messages[0].content[0].source.data"),
    (user(result([document(PDF)])), "messages[0].content[0].content[0].source.media_type"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "param"), REFUSED)
def test_content_that_no_model_can_read_is_refused_by_name(message, param):
    with pytest.raises(InvalidRequest) as refused:
        read_history([message], None)

    assert refused.value.param == param


ODD = ["", "EqQB", "ofr1.", "ofr1.AAAA", "ofr1.é", "ofs1.00", UNENCRYPTED("x")[:-6]]


def test_sealed_text_is_read_again():
    """Even if the model wrote half of a character."""
    assert Unsealer().read(UNENCRYPTED("é\ud800")) == "é\ud800"


@pytest.mark.parametrize("signature", ODD)
def test_foreign_signature_is_never_refused(signature):
    assert Unsealer().read(signature) is None
    blocks = assistant({"type": "thinking", "thinking": "", "signature": signature}, TEXT)

    messages = read_history([SAID, blocks, SAID], None).messages

    assert messages[1] == {"role": "assistant", "content": "hi"}
