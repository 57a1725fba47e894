"""Adapters that say something, and what they say to OpenAI's client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai

from tests.gateway_process import GatewayProcess

ANSWERS = {
    "pirate": "Ahoy, I am a pirate.",
    "robot": "Beep. I am a robot.",
    "poet": "I write poems of rain.",
}
QUESTION = "What is Triton?"
BASE = "Triton Inference Server is NVIDIA's open-source server"  # how the base begins


@asynccontextmanager
async def connected(gateway: GatewayProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client, which tries nothing twice."""
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=60
    ) as client:
        yield client


async def say(client: openai.AsyncOpenAI, model: str, *, stream: bool = False) -> str:
    """The answer to the question, as the model gives it without chance."""
    asked: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 16,
        "temperature": 0,
    }
    if not stream:
        whole = await client.chat.completions.create(**asked)
        return whole.choices[0].message.content or ""
    chunks = await client.chat.completions.create(**asked, stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
