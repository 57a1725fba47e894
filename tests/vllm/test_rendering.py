"""Responses of /render, read by vLLM's own classes; no engine runs."""

from typing import TYPE_CHECKING, Any

import msgspec
import orjson
import pytest

from schemas.tokenization import RenderedPrompt
from tests.fast.serving.test_rendered_requests import MESSAGES, of_chat, of_completion
from tests.fields import SAMPLING
from tests.vllm.conftest import locked_vllm

if TYPE_CHECKING:  # each collection of the tests would import vLLM, which takes seconds
    from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest
    from vllm.sampling_params import SamplingParams

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("request_context")]

OWN = {"prompt", "count", "max_model_len", "uncounted_media"}
# internal to vLLM's server, which sets them for each request
INTERNAL = {"output_kind", "skip_clone"}


@locked_vllm
def test_fields_have_vllms_names():
    """The response adds four fields, which vLLM's clients ignore."""
    from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest

    assert set(RenderedPrompt.model_fields) - OWN == set(GenerateRequest.model_fields)


def read(rendered: RenderedPrompt) -> "GenerateRequest":
    """Return the JSON response as vLLM's server parses it."""
    from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest

    body = orjson.dumps(rendered, default=vars, option=orjson.OPT_NON_STR_KEYS)
    return GenerateRequest.model_validate_json(body)


def said(params: "SamplingParams") -> dict[str, Any]:
    """Return its fields, without those that each server sets itself."""
    fields = msgspec.structs.asdict(params)
    return {name: value for name, value in fields.items() if name not in INTERNAL}


REQUESTS: list[dict[str, Any]] = [
    *(fields for fields, _ in SAMPLING),
    {},
    {"n": 2, "stream": True, "stream_interval": 3},
    {"response_format": {"type": "json_object"}},
    {"stop_token_ids": [], "bad_words": [], "stop": []},
]


@pytest.mark.parametrize("fields", REQUESTS, ids=str)
async def test_chat_has_vllms_sampling_parameters(fields):
    """They equal those that vLLM's server derives from the chat request itself."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    expected = ChatCompletionRequest.model_validate({"messages": MESSAGES, **fields})

    request = read(await of_chat(**fields))

    params = expected.to_sampling_params(fields.get("max_tokens"), {})
    assert said(request.sampling_params) == said(params)
    assert (request.stream, request.token_ids) == (expected.stream, [*b"hello"])


@pytest.mark.parametrize("fields", [*REQUESTS, {"max_tokens": 0, "echo": True}], ids=str)
async def test_completion_has_vllms_sampling_parameters(fields):
    """They equal those that vLLM's server derives from the completion request itself."""
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    expected = CompletionRequest.model_validate({"prompt": "ab", **fields})

    [request] = map(read, await of_completion(**fields))

    params = expected.to_sampling_params(expected.max_tokens, {})
    assert said(request.sampling_params) == said(params)
