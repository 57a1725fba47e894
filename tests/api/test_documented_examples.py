"""The examples on /docs, run against vLLM."""

import httpx
import pytest

from tests.gateway_process import GatewayProcess

pytestmark = pytest.mark.engine

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/messages")


@pytest.mark.parametrize("path", ENDPOINTS)
def test_examples_run(gateway: GatewayProcess, path: str) -> None:
    """Each example names the demo model and gets an answer."""
    document = httpx.get(f"{gateway.url}/openapi.json").json()
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]

    for name, example in body["examples"].items():
        response = httpx.post(f"{gateway.url}{path}", json=example["value"], timeout=60)
        assert response.status_code == 200, f"{name}: {response.text}"
        assert '"error"' not in response.text, name
