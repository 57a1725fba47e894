"""Fields that are accepted without changing the answer."""

from typing import Any

import pytest

from tests.api.conformance.conftest import Send

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
BOTH: list[dict[str, Any]] = [
    {"user": "u1"},
    {"safety_identifier": "s1"},
    {"store": True},
    {"prompt_cache_key": "k"},
    {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}},
    {"prompt_cache_retention": "24h"},
]
CHAT_ONLY: list[dict[str, Any]] = [
    {"parallel_tool_calls": False},
    {"prediction": {"type": "content", "content": [{"type": "text", "text": "Hello"}]}},
    {"modalities": ["text"]},
]


def accepted(path: str, prefix: str, fields: dict[str, Any]) -> Any:
    names = [f"{prefix}.{name}" for name in fields]
    return pytest.param(path, fields, marks=pytest.mark.accepts(*names), id=names[0])


ACCEPTED = [
    *(accepted(CHAT, "chat", fields) for fields in [*BOTH, *CHAT_ONLY]),
    *(accepted(COMPLETIONS, "completions", fields) for fields in BOTH),
    accepted(COMPLETIONS, "completions", {"metadata": {"k": "v"}}),
]


@pytest.mark.parametrize(("path", "fields"), ACCEPTED)
def test_accepted_fields_do_not_change_the_answer(send: Send, path, fields):
    """The answer equals that of a request without the field."""
    choices = send(path, **fields).json()["choices"]

    assert choices == send(path).json()["choices"]


@pytest.mark.accepts("embeddings.user")
def test_accepted_fields_do_not_change_embeddings(send: Send):
    """`user` does not change a vector."""
    assert send(EMBEDDINGS, user="u1").json()["data"] == send(EMBEDDINGS).json()["data"]


NEUTRAL = [
    pytest.param({"tool_choice": "none"}, marks=pytest.mark.accepts("chat.tool_choice.none")),
    pytest.param({"tool_choice": "auto"}, marks=pytest.mark.accepts("chat.tool_choice.auto")),
    pytest.param({"function_call": "none"}, marks=pytest.mark.accepts("chat.function_call.none")),
    pytest.param({"function_call": "auto"}, marks=pytest.mark.accepts("chat.function_call.auto")),
]


@pytest.mark.parametrize("fields", NEUTRAL)
def test_tool_choice_without_tools(send: Send, fields):
    """`tool_choice` has no effect if the request has no tools."""
    assert send(CHAT, **fields).json()["choices"] == send(CHAT).json()["choices"]


TEXT = {"type": "text", "text": "hi", "prompt_cache_breakpoint": {"mode": "explicit"}}
BREAKPOINTS = [
    pytest.param(
        role,
        marks=pytest.mark.accepts(
            f"chat.messages.{role}.content{kind}.prompt_cache_breakpoint"
        ),
    )
    for role, kind in [
        ("developer", ""), ("system", ""), ("user", ".text"), ("assistant", ".text"), ("tool", ""),
    ]
]  # fmt: skip


@pytest.mark.parametrize("role", BREAKPOINTS)
def test_cache_breakpoints_do_not_change_the_answer(send: Send, role):
    """The engine caches prefixes by itself, so a client's breakpoints have no effect."""
    message = {"role": role, "content": [TEXT]}
    if role == "tool":
        message["tool_call_id"] = "c"

    answer = send(CHAT, messages=[message]).json()

    assert answer["choices"] == send(CHAT).json()["choices"]
