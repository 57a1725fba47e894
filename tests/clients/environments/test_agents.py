"""Coding agents complete a task through the gateway, with a scripted model. `make test-agents`, and
`make test-claude-code`, whose agent nothing else installs.
"""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import mock_models
from tests.coding_agents.agent import MODEL, Agent, Call, Folders
from tests.coding_agents.table import BY_ID, CLAUDE_CODE
from tests.gateway_process import GatewayProcess

# The APIs whose agents run here, by path
SERVED = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
OPT_IN = "claude-code-messages"
AGENTS = {name: agent for name, agent in BY_ID.items() if agent.api in SERVED}
AGENTS[OPT_IN] = CLAUDE_CODE

pytestmark = pytest.mark.slow
free = pytest.mark.skipif(
    not all(agent.installed for agent in BY_ID.values()),
    reason="the agents are not installed: run `make setup-agents`",
)
opt_in = pytest.mark.skipif(
    not CLAUDE_CODE.installed,
    reason="Claude Code is not installed: `make test-claude-code` does that",
)

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
FIND = "List what is scheduled."
LOOK, AGAIN, ANSWERED = "Look around.", "What is there?", "Nothing."  # two runs of a session
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
        f"<think>\nStep {number}.\n</think>\n\n{called(*call)}"
        for number, call in enumerate(calls(AGENTS[name], folders.project))
    ]
    return [
        {"contains": prompt(name), "after": number, "text": text}
        for number, text in enumerate([*texts, FINAL])
    ]


def called(tool: str, arguments: Mapping[str, Any]) -> str:
    content = json.dumps({"name": tool, "arguments": arguments})
    return f"<tool_call>\n{content}\n</tool_call>"


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
    script += [
        {"contains": LOOK, "after": 0, "text": called(*CLAUDE_CODE.run_command("ls"))},
        {"contains": LOOK, "after": 1, "text": FINAL},
        {"contains": AGAIN, "text": ANSWERED},
        {"contains": FIND, "after": 0, "text": called("ToolSearch", {"query": "select:CronList"})},
        {"contains": FIND, "after": 1, "text": called("CronList", {})},
        {"contains": FIND, "after": 2, "text": FINAL},
    ]
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


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=opt_in if each == OPT_IN else free) for each in AGENTS]
)
def test_agent_completes_a_task(gateway, folders, name):
    """It reads, edits, runs, fixes, runs again and finishes: without an error or a retry. The
    prompts begin with the earlier ones, so most of them are in the prefix cache.
    """
    agent, project = AGENTS[name], folders[name].project
    result, counted = run(agent, gateway, folders[name], prompt(name))

    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    assert FINAL in result.stdout
    assert (project / "calculator.py").read_text() == SOURCE.replace(WRONG, RIGHT)
    assert (project / "runs.txt").read_text() == "failed passed "
    assert requests(counted) == {(SERVED[agent.api], "200"): STEPS + TITLES.get(agent.name, 0)}
    later_prompts = counted[PROMPT,] * (STEPS - 1) / STEPS  # the first one is new
    assert counted[CACHED,] > 0.95 * later_prompts


@opt_in
def test_claude_code_continues_a_session(gateway, tmp_path):
    """It sends the first run's turns again, which are in the prefix cache."""
    own = Folders.below(tmp_path)
    first, _ = run(CLAUDE_CODE, gateway, own, LOOK)
    again = dataclasses.replace(CLAUDE_CODE, arguments=("--continue", *CLAUDE_CODE.arguments))
    result, counted = run(again, gateway, own, AGAIN)

    assert (first.returncode, first.stdout.strip()) == (0, FINAL)
    assert (result.returncode, result.stdout.strip()) == (0, ANSWERED)
    assert requests(counted) == {("/v1/messages", "200"): 1}
    assert counted[CACHED,] > 0.95 * counted[PROMPT,]


@opt_in
def test_claude_code_finds_tools(gateway, tmp_path):
    """The tool that its search has found does not move the tools before it."""
    result, counted = run(CLAUDE_CODE, gateway, Folders.below(tmp_path), FIND)

    assert (result.returncode, result.stdout.strip()) == (0, FINAL)
    assert requests(counted) == {("/v1/messages", "200"): 3}
    assert counted[CACHED,] > 0.95 * counted[PROMPT,] * 2 / 3  # the first one may be new


@opt_in
def test_claude_code_counts_its_context(gateway, tmp_path):
    """Its command /context measures parts of the prompt, without the model."""
    result, counted = run(CLAUDE_CODE, gateway, Folders.below(tmp_path), "/context")

    assert (result.returncode, "Context Usage" in result.stdout) == (0, True)
    assert list(requests(counted)) == [("/v1/messages/count_tokens", "200")]


def run(
    agent: Agent, gateway: GatewayProcess, own: Folders, text: str
) -> tuple[subprocess.CompletedProcess[str], dict[tuple[str, ...], float]]:
    """The program's result, and how much it has added to the counters."""
    before = counters(gateway)
    result = agent.run(gateway.url, own, text)
    return result, {key: value - before.get(key, 0) for key, value in counters(gateway).items()}


def requests(counted: Mapping[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    """Those of the agent."""
    return {
        tuple(key): value
        for (counter, *key), value in counted.items()
        if counter == REQUESTS and value and key[0] != "/metrics"
    }
