"""The answer of /render: the request for each prompt, in the form of vLLM's own server."""

from typing import Any

import orjson
import pytest

from openai_frontend.auth.rate_limit import Reservation
from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import GenerationRequest
from openai_frontend.serving.admission.concurrency_limit import ConcurrencyLimiter
from openai_frontend.serving.admission.permit import Admission
from openai_frontend.serving.dialects.completions import Completions
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from openai_frontend.serving.tokenization import rendered
from schemas.chat_completions import ChatCompletionRequest
from schemas.completions import CompletionRequest
from schemas.tokenization import RenderedPrompt
from tests.fast.auth.key_files import FakeClock, caller, key
from tests.fast.serving.fake_model import FakeModel, admission, chat_completions

CHAT = chat_completions()
COMPLETIONS = Completions(InferenceLimits(), FieldPolicy("reject"), admission())
MESSAGES = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {}}


async def of_chat(model: FakeModel | None = None, **fields: Any) -> RenderedPrompt:
    served: Any = model or FakeModel()
    body = orjson.dumps({"messages": MESSAGES, **fields})
    request = ChatCompletionRequest.model_validate_json(body)
    [only] = await rendered(await CHAT.build_job(request, served), request)
    return only


async def of_completion(**fields: Any) -> list[RenderedPrompt]:
    served: Any = FakeModel()
    request = CompletionRequest.model_validate_json(orjson.dumps({"prompt": "ab", **fields}))
    return await rendered(await COMPLETIONS.build_job(request, served), request)


async def test_choices_of_a_prompt_are_one_request_to_vllm():
    """Its id is the id of the answer."""
    one, other = await of_completion(prompt=[[97], [98, 99]], n=3, seed=5)

    assert [(each.prompt, each.token_ids, each.count) for each in (one, other)] == [
        ("a", [97], 1),
        ("bc", [98, 99], 2),
    ]
    assert one.sampling_params == {"n": 3, "seed": 5, "max_tokens": 16}
    assert (one.request_id[-2:], other.request_id[-2:]) == ("-0", "-1")
    assert one.request_id[:-2] == other.request_id[:-2]


async def test_max_tokens_is_always_set():
    """Without it, vLLM would limit the answer to 16 tokens."""
    assert (await of_chat()).sampling_params["max_tokens"] is None
    assert (await of_chat(FakeModel(max_model_len=50))).sampling_params["max_tokens"] == 45
    assert (await of_completion(max_tokens=0, echo=True))[0].sampling_params["max_tokens"] == 1


async def test_stream_options_and_priority_are_outside_of_the_sampling_params():
    """They apply to the request as a whole."""
    options = {"include_usage": True, "include_obfuscation": False}
    fields: dict[str, Any] = {"stream_options": options, "cache_salt": "s"}

    request = await of_chat(stream=True, stream_interval=4, priority=2, **fields)

    assert request.stream is True
    assert request.stream_options == {"include_usage": True, "continuous_usage_stats": None}
    assert (request.cache_salt, request.priority) == ("s", 2)
    assert request.sampling_params["stream_interval"] == 4


async def test_constrained_request_sets_reasoning_ended():
    """Its grammar includes the reasoning, so vLLM applies it from the first token."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}

    request = await of_chat(response_format=form)

    assert request.sampling_params["structured_outputs"] == {"json": SCHEMA}
    assert request.reasoning_ended is True
    assert (await of_chat()).reasoning_ended is None


async def test_beam_search_is_refused():
    """vLLM's sampling parameters have no beams."""
    with pytest.raises(InvalidRequest) as refused:
        await of_chat(use_beam_search=True, n=2)

    assert refused.value.param == "use_beam_search"


async def test_rendering_uses_no_slot_and_no_tokens(request_context):
    """It works even if the server is full and the caller has no tokens left."""
    who = caller(key("k", tokens_per_minute=1), FakeClock())
    request_context.principal, request_context.reservation = who, Reservation(who.rate_limiter)
    who.rate_limiter.reserve(1)
    chat = chat_completions(admitted=Admission(limiter := ConcurrencyLimiter(1)))
    completions = Completions(InferenceLimits(), FieldPolicy("reject"), Admission(limiter))
    model: Any = FakeModel()
    await limiter.slots_for(model).acquire(1)

    chatted = await chat.build_job(
        ChatCompletionRequest.model_validate({"messages": MESSAGES}), model
    )
    completed = await completions.build_job(CompletionRequest(prompt="a"), model)

    assert isinstance(chatted.requests[0], GenerationRequest)
    assert completed.requests[0].prompt == "a"
