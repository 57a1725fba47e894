"""For every end of an answer, metrics, quota and request record report the same tokens."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from openai_frontend.auth.api_keys import Principal
from openai_frontend.auth.rate_limit import Reservation
from openai_frontend.metrics.gateway import GatewayMetrics
from openai_frontend.request_context.context import RequestContext, current
from openai_frontend.request_context.record import RequestRecord
from openai_frontend.serving.dialects.completion_output import CompletionText
from openai_frontend.serving.dialects.response_fields import usage_fields
from openai_frontend.serving.output.collect import collect
from tests import mock_models
from tests.fast.auth.key_files import FakeClock, caller, key
from tests.fast.prompting import tiny_tokenizer
from tests.medium.serving.test_chat import prepare

LIMIT = 10_000
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
HERMES = "{# <tool_call> #}{% if tools %}{{ tools | tojson }}{% endif %}" + tiny_tokenizer.CHATML
FUNCTION = {"name": "now", "parameters": {"type": "object"}}


@dataclass(frozen=True)
class Accounts:
    """A model in use by one key, and everything that reports its usage."""

    model: Any  # the model as its caller sees it
    caller: Principal
    record: RequestRecord
    metrics: GatewayMetrics

    def metric(self, name: str, **labels: str) -> float:
        labels = {"model": "m", "version": "1", "adapter": "", **labels}
        value = self.metrics.registry.get_sample_value(f"openai_frontend_{name}", labels)
        return value or 0.0

    def ends(self) -> dict[str, float]:
        counted = {
            end: self.metric("generations_total", finish_reason=end)
            for end in ("stop", "length", "cancelled", "error")
        }
        return {end: count for end, count in counted.items() if count}

    def charged(self) -> int:
        [standing] = self.caller.rate_limiter.statuses()
        return round(standing.reset_s * LIMIT / 60)


@asynccontextmanager
async def accounts(folder: Path) -> AsyncIterator[Accounts]:
    who = caller(key("k", tokens_per_minute=LIMIT), FakeClock())
    record = RequestRecord("r")
    context = RequestContext(
        "r", principal=who, reservation=Reservation(who.rate_limiter), record=record
    )
    token = current.set(context)
    async with mock_models.serving(folder, tool_call_parser={"m": "hermes"}) as models:
        model = models.get("m")
        yield Accounts(model, who, record, model.metrics)
    current.reset(token)


def write(folder: Path, text: str, **engine: Any) -> None:
    """Write the model `m`, which repeats the text with three characters per token."""
    pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
    version = mock_models.write(folder, "m", tokenizer="./tokenizer", tokens=pieces, **engine)
    tiny_tokenizer.write(version / "tokenizer", chat_template=HERMES)


ONE_CALL: list[dict[str, Any]] = [
    {"tools": [{"type": "function", "function": FUNCTION}], "parallel_tool_calls": False},
    {"functions": [FUNCTION]},
]


@pytest.mark.parametrize("fields", ONE_CALL, ids=["parallel_tool_calls", "functions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_answer_that_ends_with_its_only_call_is_fully_accounted(tmp_path, fields, stream):
    """It ends with `stop` although the server stopped the engine.

    The key pays for the tokens used, not for the reservation.
    """
    write(tmp_path, CALL, tokens_per_second=200)
    async with accounts(tmp_path) as each:
        answer = await prepare(each.model, stream=stream, max_tokens=1000, **fields)
        usage = usage_fields((await collect(answer, CompletionText))[1])

        assert each.ends() == {"stop": 1}
        assert each.metric("prompt_tokens_sum") == usage["prompt_tokens"]
        assert each.metric("generation_tokens_sum") == usage["completion_tokens"]
        assert each.charged() == usage["total_tokens"]
    record = each.record
    assert record.prompt_tokens == usage["prompt_tokens"]
    assert record.completion_tokens == usage["completion_tokens"]
    assert [one.usage.finish_reason for one in record.generations] == ["stop"]


async def test_cancelled_answer_counts_the_tokens_received(tmp_path):
    """The engine never reported counts."""
    write(tmp_path, "abc", tokens_per_second=200)
    async with accounts(tmp_path) as each:
        answer = await prepare(each.model, stream=True, max_tokens=100)
        async with aclosing(answer.bursts()) as bursts:
            texts = [len(deltas) async for _, deltas in _first(bursts, 5)]

        assert each.ends() == {"cancelled": 1}
        assert each.metric("generation_tokens_sum") >= sum(texts) >= 5
        assert each.record.completion_tokens == each.metric("generation_tokens_sum")
        assert each.charged() == each.record.prompt_tokens + 100


async def _first(bursts: Any, wanted: int) -> Any:
    async for burst in bursts:
        for choice in burst:
            yield choice
        wanted -= len(burst)
        if wanted <= 0:
            return


async def test_cancelled_relayed_answer_counts_its_tokens(tmp_path):
    """Relayed text bypasses the gateway's Python code."""
    write(tmp_path, "abc", tokens_per_second=200)
    written = asyncio.Event()
    frames: list[bytes] = []

    def write_frame(frame: bytes) -> bool:
        frames.append(frame)
        if len(frames) == 5:
            written.set()
        return False

    async with accounts(tmp_path) as each:
        answer = await prepare(each.model, stream=True, max_tokens=100)
        relay = answer.requests[0].relay
        assert relay is not None
        async with aclosing(answer.bursts()) as bursts:
            await anext(bursts)
            relay.take(b"", b"", write_frame)
            rest = asyncio.ensure_future(anext(bursts))
            await written.wait()
            rest.cancel()
            await asyncio.wait([rest])

        assert each.metric("generation_tokens_sum") >= 1 + len(frames)
        assert each.record.completion_tokens == each.metric("generation_tokens_sum")


@pytest.mark.parametrize("stream", [False, True])
async def test_time_to_first_token_is_measured_at_the_engine(tmp_path, stream):
    """vLLM does the same. Streamed and complete answers agree, and the time per output token
    covers the other tokens.
    """
    write(tmp_path, "abc", tokens_per_second=50)
    async with accounts(tmp_path) as each:
        await collect(await prepare(each.model, stream=stream, max_tokens=25), CompletionText)
        first_s = each.metric("time_to_first_token_seconds_sum")
        answer_s = each.metric("generation_duration_seconds_sum")

        assert first_s < answer_s / 4
        per_token_s = each.metric("time_per_output_token_seconds_sum")
        assert per_token_s == pytest.approx((answer_s - first_s) / 24, rel=0.05)
        assert each.metric("output_tokens_total") == 25
    [generation] = each.record.generations
    assert generation.first_ns is not None
    assert generation.end_ns is not None
    assert generation.end_ns - generation.first_ns > answer_s / 2 * 1e9
