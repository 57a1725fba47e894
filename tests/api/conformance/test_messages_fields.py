"""Fields of /v1/messages: which reach the prompt, have no effect, become notes, or are refused."""

import base64
from typing import Any

import pytest

from openai_frontend.serving.request.field_policy import NEUTRAL_IN_MESSAGES
from openai_frontend.serving.request.sealed_text import UNENCRYPTED
from tests import images
from tests.api.conformance.traced import SEEN, TRACE, UNSEEN, Ask, Body, leaves, rows

PREFIX = "messages"
accepts, honours = pytest.mark.accepts, pytest.mark.honours
notes, refuses = pytest.mark.notes, pytest.mark.refuses
HI = {"role": "user", "content": "hi"}
USER = "messages.messages.user.content"


@pytest.fixture
def ask(traced_client) -> Ask:
    """Posts the body, to which what is required is added."""
    required = {"model": "traced", "max_tokens": 9, "messages": [HI]}
    return lambda body: traced_client.post("/v1/messages", json={**required, **body})


def text(response: Any) -> str:
    assert response.status_code == 200, response.text
    [block] = response.json()["content"]
    said: str = block["text"]
    return said


def said(role: str, **block: Any) -> Body:
    """A message of the role before the user's."""
    return {"messages": [{"role": role, "content": [block]}, HI]}


def block(**fields: Any) -> list[Body]:
    """The block in each place where a user's is read."""
    result = {"type": "tool_result", "tool_use_id": "t", "content": [fields]}
    return [said("user", **fields), said("user", **result)]


def document(**source: Any) -> list[Body]:
    return block(type="document", source=source)


def tool(**fields: Any) -> Body:
    return {
        "tools": [{"type": "custom", "name": "f", "input_schema": {"type": "object"}, **fields}]
    }


USE = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "x"}
FOUND = {"type": "search_result", "source": "s", "title": "t", "content": []}
TEXT = {"type": "text", "text": "x"}
PLAIN = {"type": "text", "media_type": "text/plain", "data": "x"}
TRACED_TEXT = {"type": "text", "text": TRACE}

HONOURED: list[Body] = [
    *({"messages": [{"role": role, "content": TRACE}, HI]}
      for role in ("user", "assistant", "system")),
    *(said(role, **TRACED_TEXT) for role in ("user", "assistant", "system")),
    *block(**TRACED_TEXT),
    {"system": TRACE},
    {"system": [TRACED_TEXT]},
    *document(**{**PLAIN, "data": TRACE}),
    *document(type="content", content=TRACE),
    *document(type="content", content=[TRACED_TEXT]),
    *(each for name in ("title", "context")
      for each in block(type="document", source=PLAIN, **{name: TRACE})),
    *(each for name in ("source", "title") for each in block(**{**FOUND, name: TRACE})),
    *block(**{**FOUND, "content": [TRACED_TEXT]}),
    said("user", **{**RESULT, "tool_use_id": TRACE}),
    said("user", **{**RESULT, "content": TRACE}),
    said("user", **{**RESULT, "content": [{"type": "tool_reference", "tool_name": TRACE}]}),
    said("assistant", type="thinking", thinking=TRACE, signature="s"),
    *(said("assistant", **{**USE, name: TRACE}) for name in ("id", "name")),
    said("assistant", **{**USE, "input": {"a": TRACE}}),
    tool(name=TRACE),
    tool(description=TRACE),
    tool(input_schema={"type": "object", "properties": {TRACE: {}}}),
    tool(input_schema={"type": "object", "required": [TRACE]}),
]  # fmt: skip


@pytest.mark.parametrize("body", rows(PREFIX, honours, HONOURED))
def test_text_of_the_field_is_in_the_prompt(ask, body):
    assert text(ask(body)) == SEEN


@honours("messages.messages.content.tool_reference")
@honours("messages.messages.content.tool_reference.tool_name")
def test_reference_of_a_user_is_in_the_prompt(ask):
    assert text(ask(said("user", type="tool_reference", tool_name=TRACE))) == SEEN


DATA = base64.b64encode(TRACE.encode()).decode()


@honours(
    f"{USER}.document.source.base64",
    f"{USER}.document.source.base64.data",
    f"{USER}.document.source.base64.media_type",
)
@pytest.mark.parametrize("body", document(type="base64", media_type="text/plain", data=DATA))
def test_text_of_a_document_is_in_the_prompt(ask, body):
    assert text(ask(body)) == SEEN


@honours("messages.messages.assistant.content.thinking.signature")
def test_sealed_reasoning_is_in_the_prompt(ask):
    body = said("assistant", type="thinking", thinking="", signature=UNENCRYPTED(TRACE))
    assert text(ask(body)) == SEEN


@honours(f"{USER}.tool_result.is_error")
@pytest.mark.parametrize(("is_error", "answer"), [(True, SEEN), (False, UNSEEN)])
def test_error_is_marked_in_the_prompt(ask, is_error, answer):
    body = said("user", **{**RESULT, "content": TRACE, "is_error": is_error})
    assert text(ask({**body, "model": "errors"})) == answer


PNG = base64.b64encode(images.red_circle()).decode()
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}


@honours(
    "messages.model",
    *(
        f"{USER}.image{name}"
        for name in (
            "",
            ".source",
            ".source.base64",
            ".source.base64.data",
            ".source.base64.media_type",
            ".source.url",
        )
    ),
    f"{USER}.document.source.content.image",
    f"{USER}.tool_result.content.image",
)
@pytest.mark.parametrize(
    "body",
    [
        *block(**IMAGE),
        *block(type="image", source={"type": "url", "url": images.data_url(images.red_circle())}),
        *document(type="content", content=[IMAGE]),
    ],
)
def test_image_reaches_the_model(ask, body):
    assert text(ask({**body, "model": "images"})).startswith("png ")


IGNORED: list[Body] = [
    *(said(role, **TEXT, **{name: TRACE})
      for role in ("user", "assistant", "system") for name in ("cache_control", "citations")),
    *({"system": [{**TEXT, name: TRACE}]} for name in ("cache_control", "citations")),
    *(said("user", type="document", source=PLAIN, **{name: TRACE})
      for name in ("cache_control", "citations")),
    said("user", type="document", source={**PLAIN, "media_type": TRACE}),
    *(said("user", **FOUND, **{name: TRACE}) for name in ("cache_control", "citations")),
    *(said("user", **{**FOUND, "content": [{**TEXT, name: TRACE}]})
      for name in ("cache_control", "citations")),
    *(said("user", **RESULT, **{name: TRACE}) for name in ("cache_control", "toolset_name")),
    said("user", **{**RESULT, "content": [
        {"type": "tool_reference", "tool_name": "f", "cache_control": TRACE}]}),
    *(said("assistant", **USE, **{name: TRACE})
      for name in ("cache_control", "caller", "toolset_name")),
    *(tool(**{name: [TRACE]}) for name in (
        "allowed_callers", "cache_control", "eager_input_streaming", "input_examples")),
    *({name: TRACE} for name in (
        "cache_control", "container", "context_management", "diagnostics", "inference_geo",
        "metadata", "user_profile_id", "workspace_id", "billing_policy", "fallback_credit_token")),
]  # fmt: skip


@pytest.mark.parametrize("body", leaves(PREFIX, accepts, IGNORED))
def test_field_is_accepted_without_effect(ask, body):
    assert text(ask(body)) == UNSEEN


ASSISTANT = "messages.assistant.content"
SERVER_TOOLS = (
    "bash_20250124", "code_execution_20250522", "code_execution_20250825",
    "code_execution_20260120", "code_execution_20260521", "browser_toolset_20260801",
    "memory_20250818", "computer_toolset_20260801", "text_editor_20250124",
    "text_editor_20250429", "text_editor_20250728", "web_search_20250305", "web_fetch_20250910",
    "web_search_20260209", "web_fetch_20260209", "web_fetch_20260309", "web_search_20260318",
    "web_fetch_20260318",
)  # fmt: skip
SEARCH = {"type": "tool_search_tool_bm25_20251119"}
WITHOUT_EFFECT: list[tuple[str, Body]] = [
    ("speed", {"speed": "fast"}),
    ("service_tier", {"service_tier": "auto"}),
    (f"{ASSISTANT}.redacted_thinking", said("assistant", type="redacted_thinking", data=TRACE)),
    *((f"tools.{kind}", {"tools": [{"type": kind, "name": TRACE}]}) for kind in SERVER_TOOLS),
    *((f"tools.{name}", {"tools": [{**SEARCH, name: TRACE}]}) for name in (
        "name", "allowed_callers", "cache_control", "defer_loading", "strict")),
]  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [pytest.param(body, marks=accepts(f"messages.{name}"), id=name)
     for name, body in WITHOUT_EFFECT],
)  # fmt: skip
def test_value_is_accepted_without_effect(ask, body):
    """Tools that Anthropic runs or defines are left out."""
    assert text(ask(body)) == UNSEEN


@accepts(f"{USER}.image.cache_control", f"{USER}.image.transformations")
@pytest.mark.parametrize("name", ["cache_control", "transformations"])
def test_image_is_seen_without_its_options(ask, name):
    body = said("user", **IMAGE, **{name: TRACE})
    assert text(ask({**body, "model": "images"})).startswith("png ")


OF_SERVERS = (
    "server_tool_use", "web_search_tool_result", "web_fetch_tool_result",
    "code_execution_tool_result", "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result", "tool_search_tool_result", "container_upload",
)  # fmt: skip
NOTED: list[tuple[str, str, Body]] = [
    *((role, kind, {"name": TRACE}) for role in ("user", "assistant") for kind in OF_SERVERS),
    ("user", "thinking", {"thinking": TRACE, "signature": "s"}),
    ("user", "redacted_thinking", {"data": TRACE}),
    ("user", "tool_use", {**USE, "input": {"a": TRACE}}),
    ("assistant", "image", {"source": {"type": "url", "url": TRACE}}),
    ("assistant", "document", {"source": {**PLAIN, "data": TRACE}}),
    ("assistant", "search_result", {**FOUND, "title": TRACE}),
    ("assistant", "tool_result", {**RESULT, "content": TRACE}),
]


@pytest.mark.parametrize(
    ("role", "fields"),
    [pytest.param(role, {**fields, "type": kind},
                  marks=notes(f"messages.messages.{role}.content.{kind}"), id=f"{role}.{kind}")
     for role, kind, fields in NOTED],
)  # fmt: skip
def test_prompt_has_a_note_of_the_block(ask, role, fields):
    """A block of a role that has no such blocks becomes a note, too."""
    assert text(ask(said(role, **fields))) == SEEN


@notes(f"{USER}.tool_result.content.browser_state")
def test_prompt_has_a_note_of_the_browser(ask):
    state = {"type": "browser_state", "tabs": [{"title": TRACE}]}
    assert text(ask(said("user", **{**RESULT, "content": [state]}))) == SEEN


REFUSED: list[tuple[str, Body, str]] = [
    *((f"messages.user.content.document.source.{kind}",
       said("user", type="document", source={"type": kind, **source}), param)
      for kind, source, param in (
          ("base64", {"media_type": "application/pdf", "data": ""}, "source.media_type"),
          ("url", {"url": "https://example.com"}, "source"),
          ("file", {"file_id": "f"}, "source"))),
    ("messages.user.content.image.source.file",
     said("user", type="image", source={"type": "file", "file_id": "f"}), "source"),
    *((name, {name: {"something": ["else"]}}, name) for name in NEUTRAL_IN_MESSAGES),
    ("tool_choice.any", {"tool_choice": {"type": "any"}}, "tool_choice.type"),
    ("tool_choice.tool.name", {"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "param"),
    [pytest.param(body, param, marks=refuses(f"messages.{name}"), id=name)
     for name, body, param in REFUSED],
)  # fmt: skip
def test_field_is_refused_by_name(ask, body, param):
    response = ask(body)

    assert response.status_code == 400
    assert f"{param}'" in response.json()["error"]["message"]


CACHED = {"type": "ephemeral"}
COUNTED: list[Any] = [
    *(pytest.param(body, marks=honours(f"count_tokens.{next(iter(body))}"))
      for body in ({"messages": [HI, HI]}, {"system": "Be brief."}, tool(), {"model": "errors"})),
    *(pytest.param(body, marks=accepts(f"count_tokens.{next(iter(body))}"))
      for body in (
          {"cache_control": CACHED}, {"speed": "fast"}, {"user_profile_id": "p"},
          {"workspace_id": "w"}, {"tool_choice": {"type": "auto"}},
          {"output_config": {"effort": "low"}}, {"thinking": {"type": "adaptive"}})),
]  # fmt: skip


@pytest.mark.parametrize("body", COUNTED)
def test_count_is_that_of_the_answers_usage(ask, traced_client, body):
    """Exactly: a field that changes the prompt of an answer changes the count of its tokens."""
    required = {"model": "traced", "messages": [HI]}
    counted = traced_client.post("/v1/messages/count_tokens", json={**required, **body})

    assert counted.status_code == 200, counted.text
    assert counted.json()["input_tokens"] == ask(body).json()["usage"]["input_tokens"]
