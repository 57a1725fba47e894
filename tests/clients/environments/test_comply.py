"""llm-comply, in its own environment: answers by the schemas of Anthropic and Open Responses."""

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
PLAIN: list[dict[str, Any]] = [TURNS[0], {"text": "Hello."}]


@pytest.fixture(scope="module")
def comply_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder: Path = tmp_path_factory.mktemp("comply")
    tasks = ["generate"]
    mock_models.write_with_turns(folder / "models", "claude-opus-4-7", TURNS, tasks=tasks)
    mock_models.write_with_turns(folder / "models", "o1", TURNS, tasks=tasks)  # by its name
    mock_models.write_with_turns(folder / "models", "plain", PLAIN, tasks=tasks)
    mock_models.write_with_images(folder / "models", "images", tasks=tasks)
    with GatewayProcess(folder / "models", folder / "log") as process:
        process.wait_until_ready()
        yield process


def failures(
    gateway: GatewayProcess, model: str, *options: str, form: str = "anthropic"
) -> tuple[int, list[Any]]:
    """The number of tests that passed, and those that did not."""
    program = ["llm-comply", "--format", form, "--json", "-k", "none", *options]
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


RESPONSES = (
    "basic-response,system-prompt,multi-turn,tool-calling,streaming-response,streaming-usage,"
    "assistant-phase,response-output-phase-schema,error-handling"
)
CHAT = (
    "chat-basic-response,chat-system-prompt,chat-multi-turn,chat-tool-calling,"
    "chat-streaming-response,chat-streaming-usage,chat-error-handling"
)


@pytest.mark.parametrize(
    ("form", "tests", "passed"), [("open-responses", RESPONSES, 9), ("openai-chat", CHAT, 7)]
)
def test_openais_answers_match_the_schemas(comply_gateway, form, tests, passed):
    """Of a model without reasoning, whose events have other names in Open Responses."""
    result = failures(comply_gateway, "plain", "--filter", tests, form=form)
    assert result == (passed, [])


def test_reasoning_is_summarised_as_in_open_responses(comply_gateway):
    asked = "--filter", "reasoning-summary"
    assert failures(comply_gateway, "o1", *asked, form="open-responses") == (1, [])
