"""Tokenization over HTTP, from the gateway as a process: /tokenize, /detokenize, both /render."""

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from openai_frontend.prompting import tokenizer
from openai_frontend.prompting.tokenizer import Tokenizer
from tests.gateway_process import GatewayProcess

TEXT = "Hello <|im_end|> \U0001f600"
USER = {"role": "user", "content": "Hello"}
PREFILL = {"role": "assistant", "content": "I am"}
CHAT = "<|im_start|>user\nHello<|im_end|>\n"
ASSISTANT = "<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def client(mock_gateway: GatewayProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=mock_gateway.url) as client:
        yield client


@pytest.fixture(scope="module")
def tokens(mock_gateway: GatewayProcess) -> Tokenizer:
    """The tokenizer of the gateway's model."""
    return tokenizer.load(mock_gateway.log.parent / "models" / "mock" / "1" / "tokenizer")


def answered(client: httpx.Client, path: str, **body: Any) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def refused(client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    response = client.post(path, json={"model": "mock", **body})
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])
def test_tokenize_uses_the_tokenizer_of_the_model(
    client: httpx.Client, tokens: Tokenizer, path: str
) -> None:
    """The response has vLLM's format."""

    answer = answered(client, path, model="mock", prompt=TEXT)
    expected = tokens.encode(TEXT, add_special_tokens=True).ids
    assert answer == {
        "count": len(expected),
        "max_model_len": 4096,
        "tokens": expected,
        "token_strs": None,
        "uncounted_media": None,
    }


def test_add_special_tokens_false_adds_none(client: httpx.Client, tokens: Tokenizer) -> None:
    """Special tokens in the text stay."""

    answer = answered(client, "/tokenize", model="mock", prompt=TEXT, add_special_tokens=False)
    assert answer["tokens"] == tokens.encode(TEXT, add_special_tokens=False).ids


def test_return_token_strs_returns_strings_of_the_vocabulary(client: httpx.Client) -> None:
    """Byte-level BPE writes a space as "Ġ"."""

    fields = {"add_special_tokens": False, "return_token_strs": True}
    answer = answered(client, "/tokenize", model="mock", prompt="!<|im_end|> !", **fields)
    assert answer["token_strs"] == ["!", "<|im_end|>", "Ġ", "!"]


def test_tokenize_accepts_text_beyond_the_context(client: httpx.Client) -> None:
    """Clients call it to learn the length."""

    answer = answered(client, "/tokenize", model="mock", prompt="! " * 5000)
    assert answer["count"] > answer["max_model_len"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, CHAT + ASSISTANT),
        ({"add_generation_prompt": False}, CHAT),
        ({"messages": [USER, PREFILL], "continue_final_message": True}, CHAT + ASSISTANT + "I am"),
        ({"add_special_tokens": True}, "<|endoftext|>" + CHAT + ASSISTANT),
    ],
)
def test_tokenize_renders_messages_with_the_chat_template(
    client: httpx.Client, tokens: Tokenizer, fields: dict[str, Any], text: str
) -> None:
    answer = answered(client, "/tokenize", **{"model": "mock", "messages": [USER], **fields})
    assert tokens.decode(answer["tokens"], skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({}, "prompt", "missing_required_parameter"),
        ({"prompt": "a", "messages": [USER]}, "messages", "invalid_value"),
        ({"prompt": "a", "tools": []}, "tools", "unsupported_parameter"),
        ({"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt", None),
        ({"prompt": 1}, "prompt", "invalid_type"),
        ({"prompt": "a", "chat_template": "x"}, "chat_template", "unsupported_parameter"),
        ({"messages": [USER], "tools": [{"type": "function"}]}, "tools", "unsupported_parameter"),
        (
            {"messages": [USER], "chat_template_kwargs": {"tools": "x"}},
            "chat_template_kwargs",
            None,
        ),
        (
            {
                "messages": [USER, PREFILL],
                "add_generation_prompt": True,
                "continue_final_message": True,
            },
            "continue_final_message",
            None,
        ),
    ],
)
def test_tokenize_rejects_fields_that_it_cannot_honour(
    client: httpx.Client, fields: dict[str, Any], param: str, code: str | None
) -> None:
    """The error names the field."""

    error = refused(client, "/tokenize", **fields)
    assert error["param"] == param
    assert code in (None, error["code"])


@pytest.mark.parametrize("path", ["/detokenize", "/v1/detokenize"])
def test_detokenize_returns_the_text_with_special_tokens(
    client: httpx.Client, tokens: Tokenizer, path: str
) -> None:
    ids = tokens.encode(TEXT, add_special_tokens=True).ids
    assert answered(client, path, model="mock", tokens=ids) == {"prompt": "<|endoftext|>" + TEXT}


def test_detokenize_accepts_an_empty_list(client: httpx.Client) -> None:
    assert answered(client, "/detokenize", model="mock", tokens=[]) == {"prompt": ""}


@pytest.mark.parametrize("tokens_sent", [[-1], [2**31], [999_999], ["a"], "a"])
def test_detokenize_rejects_invalid_tokens(client: httpx.Client, tokens_sent: Any) -> None:
    """A token is a number below the size of the vocabulary."""

    assert refused(client, "/detokenize", tokens=tokens_sent)["param"].startswith("tokens")


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_model_is_optional_if_there_is_only_one(client: httpx.Client, path: str) -> None:
    """vLLM's clients leave it out."""

    body = {"prompt": "a"} if path == "/tokenize" else {"tokens": [1]}

    assert answered(client, path, **body) == answered(client, path, model="mock", **body)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_unknown_model_is_a_404(client: httpx.Client, path: str) -> None:
    response = client.post(path, json={"model": "nobody", "prompt": "a", "tokens": [1]})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


RENDERED = {
    "token_offsets": None,
    "features": None,
    "content_parts": None,
    "model": "mock",
    "reasoning_ended": None,
    "reasoning_parser_kwargs": None,
    "return_token_ids": None,
    "output_mode": "tokens",
    "stream": False,
    "stream_options": None,
    "cache_salt": None,
    "priority": 0,
    "kv_transfer_params": None,
    "ec_transfer_params": None,
    "uncounted_media": None,
    "max_model_len": 4096,
}


def test_render_of_a_chat_returns_the_vllm_object(client: httpx.Client, tokens: Tokenizer) -> None:
    """With the tokens that a chat completion would count, and their text."""

    body = {"model": "mock", "messages": [USER], "max_tokens": 1, "logit_bias": {"5": 1}}
    answer = answered(client, "/v1/chat/completions/render", **body)
    ids = tokens.encode(CHAT + ASSISTANT, add_special_tokens=False).ids
    assert answer.pop("request_id").startswith("chatcmpl-")
    assert answer == {
        **RENDERED,
        "token_ids": ids,
        "sampling_params": {"n": 1, "max_tokens": 1, "logit_bias": {"5": 1.0}},
        "prompt": CHAT + ASSISTANT,
        "count": len(ids),
    }
    usage = answered(client, "/v1/chat/completions", **body)["usage"]
    assert usage["prompt_tokens"] == answer["count"]


def test_render_returns_prompts_in_order(client: httpx.Client, tokens: Tokenizer) -> None:
    """vLLM's bare list, with special tokens. A prompt sent as tokens has a text too."""

    path = "/v1/completions/render"
    texts = answered(client, path, model="mock", prompt=["!", "?"])
    assert [each["prompt"] for each in texts] == ["!", "?"]
    [of_ids] = answered(client, path, model="mock", prompt=texts[1]["token_ids"])
    assert of_ids["prompt"] == "<|endoftext|>?"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions/render", {"messages": [USER], "top_logprobs": 3}, "top_logprobs"),
        ("/v1/chat/completions/render", {"messages": []}, "messages"),
        ("/v1/completions/render", {"prompt": "a", "suffix": "b"}, "suffix"),
        ("/v1/completions/render", {"prompt": "! " * 5000}, "prompt"),
        ("/v1/completions/render", {"prompt": "!", "max_tokens": 4096}, "prompt"),
    ],
)
def test_render_rejects_what_the_request_would(
    client: httpx.Client, path: str, fields: dict[str, Any], param: str
) -> None:
    """Both use the same preparation."""

    assert refused(client, path, **fields)["param"] == param


def test_openai_python_reads_a_model_strictly(client: httpx.Client) -> None:
    """OpenAI's fields have OpenAI's types; the others describe what the model can do."""

    [listed] = client.get("/v1/models").json()["data"]
    model = openai.types.Model.model_validate(listed, strict=True)
    assert (model.id, model.object, model.owned_by) == ("mock", "model", "openai-frontend")
    assert listed == client.get("/v1/models/mock").json()
    assert {"root": "mock", "parent": None, "max_model_len": 4096}.items() <= listed.items()
    assert listed["capabilities"]["chat"] is True
