"""Codex's grammar of patches and the output of a real model, by another reader of grammars."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.coding_agents.recording import requests

llguidance = pytest.importorskip("llguidance")

pytestmark = pytest.mark.engine

CALLS = 64


def custom_tool() -> dict[str, Any]:
    """The tool `apply_patch` as Codex sends it."""
    tools = requests("codex-responses-catalogue")[0]["body"]["tools"]
    tool: dict[str, Any] = next(tool for tool in tools if tool["type"] == "custom")
    return tool


def reading(grammar: str, text: str) -> str:
    """Whether the text matches the grammar, begins a text that does, or neither."""
    tokens = llguidance.LLTokenizer("byte")
    matcher = llguidance.LLMatcher(tokens, f'%llguidance {{"no_forcing": true}}\n{grammar}')
    assert not matcher.get_error()
    data = list(text.encode())
    if matcher.try_consume_tokens(data) != len(data):
        return "neither"
    return "complete" if matcher.is_accepting() else "begun"


def test_reader_tells_a_wrong_patch():
    grammar = custom_tool()["format"]["definition"]
    whole = "*** Begin Patch\n*** Delete File: a\n*** End Patch"
    texts = whole, whole[:20], "*** Begin Patch\nx", whole.replace("Delete", "Drop")
    read = [reading(grammar, text) for text in texts]
    assert read == ["complete", "begun", "neither", "neither"]


def test_every_patch_of_a_model_matches_the_grammar(url):
    """Random ones, because the model is not trained for them; most reach the limit of tokens."""
    tool = custom_tool()
    asked = {
        "model": "demo", "tools": [tool], "tool_choice": {"type": "custom", "name": tool["name"]},
        "temperature": 1.5, "max_output_tokens": 96,
    }  # fmt: skip

    def patch(seed: int) -> tuple[str, str]:
        body = {**asked, "seed": seed, "input": f"Patch the file {seed}."}
        answer = httpx.post(f"{url}/responses", json=body, timeout=120).json()
        [call] = [item for item in answer["output"] if item["type"] == "custom_tool_call"]
        return answer["status"], call["input"]

    with ThreadPoolExecutor(16) as threads:
        patches = [*threads.map(patch, range(CALLS))]

    read = {reading(tool["format"]["definition"], text) for _, text in patches}
    assert read <= {"complete", "begun"}
    assert min(len(text) for _, text in patches) > len("*** Begin Patch\n")
    completed = [text for status, text in patches if status == "completed"]
    assert {reading(tool["format"]["definition"], text) for text in completed} <= {"complete"}
