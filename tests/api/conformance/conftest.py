"""Requests to a gateway with a mock model, for fields that do not depend on the engine."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.gateway_process import GatewayProcess

MESSAGES = [{"role": "user", "content": "hi"}]
REQUIRED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hi"},
    "/v1/embeddings": {"input": "hi"},
}
Send = Callable[..., httpx.Response]


@pytest.fixture(scope="session")
def send(mock_gateway: GatewayProcess) -> Iterator[Send]:
    """Posts the fields to a path, together with the fields that the path requires."""
    with httpx.Client(base_url=mock_gateway.url, timeout=120) as client:
        yield lambda path, **fields: client.post(
            path, json={"model": "mock", **REQUIRED[path], **fields}
        )
