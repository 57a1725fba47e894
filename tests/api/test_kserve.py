"""The commands in the README of NVIDIA's vLLM backend, against vLLM in this gateway."""

import json
import subprocess
from typing import Any

import pytest

from tests.gateway_process import GatewayProcess

pytestmark = pytest.mark.engine

BODY = {
    "text_input": "What is Triton Inference Server?",
    "parameters": {"stream": False, "temperature": 0},
}


def curl(gateway: GatewayProcess, action: str, body: dict[str, Any]) -> str:
    """`curl -X POST ... -d ...`, as in the README."""
    command = ["curl", "-sS", "-X", "POST", f"{gateway.url}/v2/models/demo/{action}"]
    data = ["-d", json.dumps(body)]
    return subprocess.run([*command, *data], capture_output=True, text=True, check=True).stdout


def test_generate(gateway: GatewayProcess) -> None:
    """One JSON object with the model's name, its version and its text."""
    answer = json.loads(curl(gateway, "generate", BODY))

    assert (answer["model_name"], answer["model_version"]) == ("demo", "1")
    assert answer["text_output"]


def test_generate_stream(gateway: GatewayProcess) -> None:
    """One event per piece of text; together they equal the complete text."""
    parameters = {"stream": True, "temperature": 0, "max_tokens": 16}
    whole = {**BODY, "parameters": {**parameters, "stream": False}}

    events = curl(gateway, "generate_stream", {**BODY, "parameters": parameters})

    texts = [json.loads(line[6:])["text_output"] for line in events.splitlines() if line]
    assert len(texts) > 1
    assert "".join(texts) == json.loads(curl(gateway, "generate", whole))["text_output"]
