"""llm-comply, in its own environment: messages and events by Anthropic's own schemas."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import mock_models
from tests.clients.environments import Environment
from tests.gateway_process import GatewayProcess

pytestmark = pytest.mark.slow

CALL = '{"name": "get_weather", "arguments": {"location": "San Francisco"}}'
TURNS: list[dict[str, Any]] = [
    {"contains": "weather", "text": f"<tool_call>\n{CALL}\n</tool_call>"},
    {"text": "<think>\nhm\n</think>\n\nHello."},
]
MODELS = {"claude-opus-4-7": "text", "images": "images"}


@pytest.fixture(scope="module")
def comply_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder: Path = tmp_path_factory.mktemp("comply")
    tasks = ["generate"]
    mock_models.write_with_turns(folder / "models", "claude-opus-4-7", TURNS, tasks=tasks)
    mock_models.write_with_images(folder / "models", "images", tasks=tasks)
    with GatewayProcess(folder / "models", folder / "log") as process:
        process.wait_until_ready()
        yield process


def failures(gateway: GatewayProcess, model: str, *options: str) -> tuple[int, list[Any]]:
    """The number of tests that passed, and those that did not."""
    program = ["llm-comply", "--format", "anthropic", "--json", "-k", "none", *options]
    result = Environment("comply").run([*program, "-u", f"{gateway.url}/v1", "-m", model])
    results = json.loads(result.stdout)["results"]
    failed = [each for each in results if each["status"] != "passed"]
    return len(results) - len(failed), failed


TEXT = (
    "anth-basic-response,anth-system-prompt,anth-multi-turn,anth-tool-calling,"
    "anth-streaming-response,anth-streaming-usage,anth-error-handling,anth-thinking-display"
)


def test_answers_and_events_match_anthropics_schemas(comply_gateway):
    assert failures(comply_gateway, "claude-opus-4-7", "--filter", TEXT) == (8, [])


def test_images_are_answered(comply_gateway):
    assert failures(comply_gateway, "images", "--filter", "anth-image-input") == (1, [])
