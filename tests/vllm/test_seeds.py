"""Seeds with prompts that one step of vLLM's engine does not read to their end."""

import asyncio

import pytest

from openai_frontend.triton import Server
from tests.vllm.requests import answer

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

PROMPTS = [[100 + (i * n) % 389 for i in range(1800)] for n in range(1, 9)]


async def test_a_seed_survives_a_step_that_reads_half_a_prompt(server: Server):
    """Prompts that come together share the tokens of a step, so some are read in two: the engine
    lives, and each seed gives what it gives alone.
    """
    options = {"seed": 7, "temperature": 1.0, "max_tokens": 8}
    together = await asyncio.gather(
        *(answer(server, "demo", prompt, **options) for prompt in PROMPTS)
    )

    alone = [await answer(server, "demo", prompt, **options) for prompt in PROMPTS]

    assert [each.text for each in together] == [each.text for each in alone]
    assert len({each.text for each in alone}) > 1
