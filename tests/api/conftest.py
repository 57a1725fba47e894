"""OpenAI's asynchronous client, connected to the shared gateway."""

import openai
import pytest


@pytest.fixture
def async_client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=60)
