"""Coding agents complete a task through the gateway, with a scripted model. `make test-agents`."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import mock_models
from tests.coding_agents.agent import MODEL, Agent, Call, Folders
from tests.coding_agents.table import BY_ID
from tests.gateway_process import GatewayProcess

# The APIs whose agents run here, by path
SERVED = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
AGENTS = {name: agent for name, agent in BY_ID.items() if agent.api in SERVED}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(agent.installed for agent in AGENTS.values()),
        reason="the agents are not installed: run `make setup-agents`",
    ),
]

WRONG, WORSE, RIGHT = "return a - b", "return a * b", "return a + b"
SOURCE = f"def add(a, b):\n    {WRONG}\n"
CHECK = """\
from calculator import add

passed = add(2, 3) == 5
with open("runs.txt", "a") as file:
    file.write("passed " if passed else "failed ")
raise SystemExit(0 if passed else 1)
"""
FINAL = "The function adds its arguments now."
TITLES = {"opencode": 1}  # requests beside the task's
STEPS = 6  # requests: read, edit, run, fix, run, finish
REQUESTS = "openai_frontend_requests_total"
PROMPT = "openai_frontend_prompt_tokens_sum"
CACHED = "openai_frontend_cached_prompt_tokens_total"
COUNTERS, LABELS = (REQUESTS, PROMPT, CACHED), ("route", "status")


def prompt(name: str) -> str:
    return f"Fix calculator.py until check.py passes, as {name}."


def calls(agent: Agent, project: Path) -> list[Call]:
    """Read, edit, run, fix, run."""
    run = agent.run_command(f"PYTHONDONTWRITEBYTECODE=1 {sys.executable} check.py")
    return [
        agent.read(project, "calculator.py"),
        agent.edit(project, "calculator.py", f"    {WRONG}", f"    {WORSE}"),
        run,
        agent.edit(project, "calculator.py", f"    {WORSE}", f"    {RIGHT}"),
        run,
    ]


def turns(name: str, folders: Folders) -> list[dict[str, Any]]:
    """The task's calls and the final text, for the agent that this prompt names."""
    texts = [
        f"<think>\nStep {number}.\n</think>\n\n<tool_call>\n"
        f"{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"
        for number, (tool, arguments) in enumerate(calls(AGENTS[name], folders.project))
    ]
    return [
        {"contains": prompt(name), "after": number, "text": text}
        for number, text in enumerate([*texts, FINAL])
    ]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Folders]:
    """Each agent's own, with the project."""
    made = {name: Folders.below(tmp_path_factory.mktemp(name)) for name in AGENTS}
    for each in made.values():
        (each.project / "calculator.py").write_text(SOURCE)
        (each.project / "check.py").write_text(CHECK)
    return made


@pytest.fixture(scope="module")
def gateway(
    tmp_path_factory: pytest.TempPathFactory, folders: Mapping[str, Folders]
) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    script = [turn for name in AGENTS for turn in turns(name, folders[name])]
    mock_models.write_with_turns(folder / "models", MODEL, script, prefix_cache_blocks=65_536)
    with GatewayProcess(folder / "models", folder / "log") as process:
        process.wait_until_ready()
        yield process


def counters(gateway: GatewayProcess) -> dict[tuple[str, ...], float]:
    """Tokens of prompts, and requests by route and status."""
    text = httpx.get(f"{gateway.url}/metrics").text
    return {
        (each.name, *(each.labels[label] for label in LABELS if label in each.labels)): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
        if each.name in COUNTERS
    }


@pytest.mark.parametrize("name", AGENTS)
def test_agent_completes_a_task(gateway, folders, name):
    """It reads, edits, runs, fixes, runs again and finishes: without an error or a retry. The
    prompts begin with the earlier ones, so most of them are in the prefix cache.
    """
    agent, project = AGENTS[name], folders[name].project
    before = counters(gateway)
    result = agent.run(gateway.url, folders[name], prompt(name))
    counted = {key: value - before.get(key, 0) for key, value in counters(gateway).items()}

    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    assert FINAL in result.stdout
    assert (project / "calculator.py").read_text() == SOURCE.replace(WRONG, RIGHT)
    assert (project / "runs.txt").read_text() == "failed passed "
    assert requests(counted) == {(SERVED[agent.api], "200"): STEPS + TITLES.get(agent.name, 0)}
    later_prompts = counted[PROMPT,] * (STEPS - 1) / STEPS  # the first one is new
    assert counted[CACHED,] > 0.95 * later_prompts


def requests(counted: Mapping[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    """Those of the agent."""
    return {
        tuple(key): value
        for (counter, *key), value in counted.items()
        if counter == REQUESTS and value and key[0] != "/metrics"
    }
