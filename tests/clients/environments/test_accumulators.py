"""What clients add up from a stream equals the whole answer, for Responses and Messages.

Each client in its own environment, with a scripted model.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import mock_models
from tests.api.routers.test_scripted_model import call
from tests.clients.environments import PROGRAMS, Environment
from tests.gateway_process import GatewayProcess

pytestmark = pytest.mark.slow

ONE = "I look. 😀" + call("weather", city="Oslo")
TWO = f"<think>\nBoth.\n</think>\n\n{call('weather', city='Bergen')}\n{call('now', city='Bergen')}"
TURNS: list[dict[str, Any]] = [
    {"contains": "reason", "text": "<think>\nI think. ä\n</think>\n\nYes, 😀."},
    {"contains": "one", "after": 0, "text": ONE},
    {"contains": "one", "after": 1, "text": "<think>\nok\n</think>\n\nIt is sunny."},
    {"contains": "two", "after": 0, "text": TWO},
    {"contains": "two", "after": 2, "text": "Sunny, and noon."},
    {"contains": "object", "text": '{"city": "Tromsø"}'},
    {"text": "Hello there. " * 20},
]
CASES: list[dict[str, Any]] = [
    {"name": "text", "prompt": "hi"},
    {"name": "reasoning", "prompt": "reason"},
    {"name": "one call", "prompt": "one", "tools": True},
    {"name": "two calls", "prompt": "two", "tools": True},
    {"name": "a loop", "prompt": "one", "tools": True, "loop": True},
    {"name": "a loop of two calls", "prompt": "two", "tools": True, "loop": True},
    {"name": "an object", "prompt": "object", "schema": True},
    {"name": "a failure", "prompt": "hi", "model": "failing"},
    {"name": "a cut text", "prompt": "hi", "max_tokens": 5},
]
PYTHON = ["openai", "anthropic", "openai-agents", "langchain-openai", "langchain-anthropic"]
NODE = ["@ai-sdk/openai", "@ai-sdk/anthropic", "@ai-sdk/open-responses"]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder: Path = tmp_path_factory.mktemp("accumulators")
    mock_models.write_with_turns(folder / "models", "scripted", TURNS, tasks=["generate"])
    failing: dict[str, Any] = {"fail_after_tokens": 3, "tasks": ["generate"]}
    mock_models.write_with_turns(folder / "models", "failing", TURNS, **failing)
    with GatewayProcess(folder / "models", folder / "log") as process:
        process.wait_until_ready()
        yield process


@pytest.fixture(scope="module")
def found(gateway: GatewayProcess) -> Any:
    """Client -> case -> the whole answers, and those added up."""
    cases = json.dumps([{"model": "scripted", **case} for case in CASES])
    environment = Environment("accumulators")
    script = str(PROGRAMS / "add_up_streams.mjs")
    node = environment.run(["node", script, gateway.url, cases, str(environment.folder)])
    python = environment.ask("add_up_streams", gateway.url, cases)
    return {**python, **json.loads(node.stdout)}


# Members that differ by answer, and two that OpenAI's SDK adds to streamed answers alone
VOLATILE = {
    "id", "call_id", "created_at", "completed_at", "signature", "toolCallId", "tool_call_id",
    "itemId", "responseId", "parsed", "parsed_arguments",
}  # fmt: skip


def stable(value: Any) -> Any:
    if isinstance(value, list):
        return [stable(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: stable(each) for name, each in value.items() if name not in VOLATILE}


@pytest.mark.parametrize("case", [case["name"] for case in CASES if "model" not in case])
@pytest.mark.parametrize("client", [*PYTHON, *NODE])
def test_sum_of_a_stream_equals_the_whole_answer(found, client, case):
    whole, added_up = found[client][case]

    assert stable(added_up) == stable(whole)
    # openai-agents raises for an answer that is cut; its loop is one result
    turns = 2 if "loop" in case and client != "openai-agents" else 1
    assert len(whole) == turns


@pytest.mark.parametrize("client", [*PYTHON, *NODE])
def test_failure_within_a_stream_is_the_clients_error(found, client):
    _, streamed = found[client]["a failure"]

    assert "The server had an error while processing your request." in streamed["error"]


ANSWERS = {
    "text": ["Hello there. " * 20],
    "reasoning": ["I think. ä", "Yes, 😀."],
    "one call": ["I look. 😀", "Oslo"],
    "two calls": ["Both.", "Bergen", "now"],
    "a loop": ["I look. 😀", "Oslo", "ok", "It is sunny."],
    "a loop of two calls": ["Both.", "Bergen", "now", "Sunny, and noon."],
    "an object": ["Tromsø"],
}


@pytest.mark.parametrize("client", [*PYTHON, *NODE])
def test_sum_has_what_the_model_has_written(found, client):
    """Otherwise two equal sums could lack the same."""
    for case, texts in ANSWERS.items():
        added_up = json.dumps(found[client][case][1], ensure_ascii=False)
        assert [text for text in texts if text not in added_up.replace("\\u00f8", "ø")] == [], case
