"""Recordings of coding agents: complete, without personal data, and as the script writes them."""

import json
import re
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest

from tests.coding_agents import recording
from tests.coding_agents.stub import FINAL, STREAMS, tool_names
from tests.coding_agents.table import BY_ID
from tests.gateway_process import ROOT

API_PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
IN_EACH = {"model", "stream", "tools"}  # not in the page's table
TITLES = {"codex": "Codex", "pi": "pi", "qwen-code": "Qwen Code", "opencode": "opencode"}


def test_each_agent_has_a_recording():
    """Of the version that `make setup-agents` installs."""
    versions = recording.versions()

    assert {path.stem for path in recording.FOLDER.glob("*.json")} == set(BY_ID)
    for name, agent in BY_ID.items():
        stored = recording.read(name)
        assert stored["client"] == {
            "name": agent.name, "package": agent.package, "version": versions[agent.package]
        }  # fmt: skip
        assert (stored["api"], stored["variant"]) == (agent.api, agent.variant)
        assert date(2026, 11, 1) <= date.fromisoformat(stored["recorded"])


@pytest.mark.parametrize("name", BY_ID)
def test_recording_is_what_the_script_writes(name):
    """To shorten and anonymise it again changes nothing."""
    stored = recording.read(name)
    again = recording.stored(BY_ID[name], recording.requests(name), {})

    assert {**again, "recorded": stored["recorded"]} == stored


@pytest.mark.parametrize("name", BY_ID)
def test_recording_has_no_personal_data(name):
    """No paths, addresses or secrets of the machine that recorded."""
    text = (recording.FOLDER / f"{name}.json").read_text(encoding="utf-8")

    assert [*recording.leaks(text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "in /tmp/tmpab12/project",
        "/var/cache/npm",
        "/home/alice/a",
        "10.0.0.7",
        "alice@example.org",
        "sk-abcdefghijklmnop1234",
        "01a21efa-3588-75a1-bba1-9bb0b41cd73c",
        "0a1b2c3d4e5f60718293a4b5c6d7e8f9",
    ],
)
def test_leaks_are_found(text):
    """What the test above looks for."""
    assert [*recording.leaks(text)]


def test_ids_stay_distinguishable():
    """Equal ids become equal ones, which keep the version of a UUID; folders get names."""
    one, two = "01a21efa-3588-75a1-bba1-9bb0b41cd73c", "6db7d5d2-9de0-41c1-8e96-74b82223069e"
    text = recording.anonymous(f"{one} {two} {one} /x/y/z 127.0.0.1:4711", {"/x/y": "/home/user"})

    assert text == (
        "00000000-0000-7000-8000-000000000001 00000000-0000-4000-8000-000000000002 "
        "00000000-0000-7000-8000-000000000001 /home/user/z 127.0.0.1:9000"
    )


@pytest.mark.parametrize("name", BY_ID)
def test_stub_answers_the_recorded_requests(name):
    """With a call of a tool that the request has, and at last with the final text."""
    requests = recording.requests(name)
    path = API_PATHS[BY_ID[name].api]
    assert {each["path"].partition("?")[0] for each in requests} == {path}
    streams = [(each["body"], "".join(STREAMS[path](each["body"]))) for each in requests]

    with_tools = [(body, stream) for body, stream in streams if tool_names(body)]
    assert len(with_tools) >= 2
    for body, stream in with_tools[:-1]:
        assert FINAL not in stream
        assert set(re.findall(r'"name": "(\w+)"', stream)) <= tool_names(body)
    assert FINAL in with_tools[-1][1]


def documented() -> Iterator[tuple[str, str, set[str]]]:
    """The agent, path and fields of each row of the page."""
    agent = ""
    page = ROOT / "tests" / "data" / "agents" / "README.md"
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [each.strip() for each in line.strip("|").split("|")]
        if len(cells) == 4 and cells[2].startswith("`/v1/"):
            agent = cells[0] or agent
            yield agent, cells[2].strip("`"), set(re.findall(r"`(\w+)`", cells[3]))


def recorded() -> dict[tuple[str, str], set[str]]:
    fields: dict[tuple[str, str], set[str]] = {}
    for name, agent in BY_ID.items():
        for request in recording.read(name)["requests"]:
            body: dict[str, Any] = request["body"]
            found = fields.setdefault((TITLES[agent.name], request["path"]), set())
            found |= body.keys() - IN_EACH
            assert body["stream"] is True
    return fields


def test_page_lists_the_fields():
    """The README names exactly the fields that each agent sends."""
    assert {(agent, path): fields for agent, path, fields in documented()} == recorded()


def test_table_of_agents_has_the_locked_versions():
    page = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    locked = [*recording.versions().values(), *recording.versions("claude-code").values()]

    assert sorted(re.findall(r"^\| [^|]+ \| (\d[\d.]+) \|", page, re.MULTILINE)) == sorted(locked)


def test_large_texts_are_cut():
    """Conversations are; tools are not."""
    stored = recording.read("codex-responses-catalogue")
    inputs = json.dumps([each["body"]["input"] for each in stored["requests"]])
    [custom] = [each for each in stored["tools"] if each["type"] == "custom"]

    assert "[cut: " in inputs
    assert len(custom["format"]["definition"]) > recording.KEPT_CHARACTERS
