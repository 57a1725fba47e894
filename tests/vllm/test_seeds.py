"""Seeds of requests whose prompts vLLM's engine processes in several steps."""

import asyncio

import pytest

from openai_frontend.triton import Server
from tests.vllm.requests import answer

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

PROMPTS = [[100 + (i * n) % 389 for i in range(1800)] for n in range(1, 9)]


async def test_seed_survives_a_chunked_prefill(server: Server):
    """Concurrent prompts share the tokens of a step, so some are split. The engine survives, and
    each seed gives the same answer as it does alone.
    """
    options = {"seed": 7, "temperature": 1.0, "max_tokens": 8}
    together = await asyncio.gather(
        *(answer(server, "demo", prompt, **options) for prompt in PROMPTS)
    )

    alone = [await answer(server, "demo", prompt, **options) for prompt in PROMPTS]

    assert [each.text for each in together] == [each.text for each in alone]
    assert len({each.text for each in alone}) > 1
