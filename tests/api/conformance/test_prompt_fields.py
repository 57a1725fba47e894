"""Fields that change the prompt, shown by the token ids in the answer."""

from typing import Any

import pytest

from tests.api.conformance.conftest import REQUIRED, Send

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
honours = pytest.mark.honours


def prompt_ids(send: Send, path: str, **fields: Any) -> list[int]:
    """The token ids of the prompt."""
    answer = send(path, return_token_ids=True, **fields).json()
    told = answer if path == CHAT else answer["choices"][0]
    ids: list[int] = told["prompt_token_ids"]
    return ids


@honours(
    "chat.truncate_prompt_tokens",
    "chat.truncation_side",
    "completions.truncate_prompt_tokens",
    "completions.truncation_side",
)
@pytest.mark.parametrize(("side", "kept"), [("right", slice(2)), ("left", slice(-2, None))])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_truncated_prompts(send: Send, path, side, kept):
    """The prompt is cut to the requested number of tokens, at the requested side."""
    fields = {"add_special_tokens": False, **REQUIRED[path]}

    cut = prompt_ids(send, path, truncate_prompt_tokens=2, truncation_side=side, **fields)

    assert cut == prompt_ids(send, path, **fields)[kept]


@honours("chat.add_special_tokens", "completions.add_special_tokens")
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_special_tokens(send: Send, path):
    """The request decides whether the prompt begins with the tokenizer's BOS token."""
    bare = prompt_ids(send, path, add_special_tokens=False)

    [_, *rest] = prompt_ids(send, path, add_special_tokens=True)

    assert rest == bare


@honours("chat.return_tokens_as_token_ids", "completions.return_tokens_as_token_ids")
def test_tokens_as_ids(send: Send):
    """Each token is named by its id."""
    fields = {"return_tokens_as_token_ids": True, "max_tokens": 2}
    chat = send(CHAT, logprobs=True, **fields).json()["choices"][0]["logprobs"]
    completion = send(COMPLETIONS, logprobs=0, **fields).json()["choices"][0]["logprobs"]

    tokens = [each["token"] for each in chat["content"]]
    assert tokens == completion["tokens"] == ["token_id:0", "token_id:1"]


@honours("completions.service_tier")
def test_service_tier(send: Send):
    """The response names the only tier if the request names any."""
    assert send(COMPLETIONS, service_tier="flex").json()["service_tier"] == "default"
    assert "service_tier" not in send(COMPLETIONS).json()
