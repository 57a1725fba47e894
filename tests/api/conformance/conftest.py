"""Requests to a gateway with a mock model, for fields that do not depend on the engine."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.api.conformance import traced
from tests.gateway_process import GatewayProcess

MESSAGES = [{"role": "user", "content": "hi"}]
REQUIRED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/v1/classify": {"input": "hi"},
    "/v1/moderations": {"input": "hi"},
}
Send = Callable[..., httpx.Response]


@pytest.fixture(scope="session")
def send(mock_gateway: GatewayProcess) -> Iterator[Send]:
    """Posts the fields to a path, together with the fields that the path requires."""
    with httpx.Client(base_url=mock_gateway.url, timeout=120) as client:
        yield lambda path, **fields: client.post(
            path, json={"model": "mock", **REQUIRED[path], **fields}
        )


@pytest.fixture(scope="session")
def traced_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a gateway with the models of `traced`."""
    folder = tmp_path_factory.mktemp("traced")
    traced.write_model(folder / "models")
    with GatewayProcess(folder / "models", folder / "log") as process:
        process.wait_until_ready()
        with httpx.Client(base_url=process.url, timeout=120) as client:
            yield client
