"""Recordings of agents' requests in `tests/data/agents`: shortened, and without personal data.

`python -m tests.coding_agents.recording [NAME ...]` records all agents, or some, again.
"""

import copy
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scripts.setup import npm
from tests.coding_agents.agent import INSTALLED, Agent, Folders
from tests.coding_agents.stub import Json, recording_stub
from tests.coding_agents.table import BY_ID
from tests.gateway_process import ROOT

FOLDER = ROOT / "tests" / "data" / "agents"
PROMPT = "Run the command."
PROJECT, HOME, PROGRAMS = "/home/user/project", "/home/user", "/opt/agents"
TOOLS = {"$ref": "#/tools"}  # instead of the tools in a request
KEPT_CHARACTERS, MARK = 300, "[cut: {} characters]"
CONVERSATION = ("system", "instructions", "messages", "input")  # fields with long texts
# Ids of this machine and of one run -> what precedes their number
IDS = {
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-([0-9a-f])[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b": (
        r"00000000-0000-\g<1>000-8000-{:012}"
    ),
    r"\bses_[0-9A-Za-z]{20,}\b": "ses_{:026}",
}
PLACES = {
    r"127\.0\.0\.1:\d+": "127.0.0.1:9000",
    r"\(Debian [\d.]+; x86_64\)": "(Linux; x86_64)",
    r"Chunk ID: [0-9a-f]+": "Chunk ID: 000000",
    r"Process Group PGID: \d+": "Process Group PGID: 1000",
}


def read(name: str) -> Json:
    """A recording, as it is stored."""
    stored: Json = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return stored


def requests(name: str) -> list[Json]:
    """The requests of a recording, each with its tools."""
    stored = read(name)
    for request in stored["requests"]:
        if (request["body"] or {}).get("tools") == TOOLS:
            request["body"]["tools"] = copy.deepcopy(stored["tools"])
    found: list[Json] = stored["requests"]
    return found


def versions(name: str = "agents") -> dict[str, str]:
    """The version of each package of a manifest."""
    manifest = json.loads((ROOT / npm.LOCKS / name / "package.json").read_text())
    locked: dict[str, str] = manifest["dependencies"]
    return locked


def stored(agent: Agent, received: list[Json], folders: Mapping[str, str]) -> Json:
    """The content of a recording's file."""
    tools: list[Json] = next(
        (each["body"]["tools"] for each in received if "tools" in each["body"]), []
    )
    shortened = copy.deepcopy(received)
    for request in shortened:
        body = request["body"]
        if body.get("tools") == tools:
            body["tools"] = TOOLS
        body.update({key: _cut(body[key]) for key in CONVERSATION if key in body})
    content = {
        "client": {
            "name": agent.name,
            "package": agent.package,
            "version": versions()[agent.package],
        },
        "api": agent.api,
        "variant": agent.variant,
        "recorded": datetime.now(UTC).date().isoformat(),
        "tools": tools,
        "requests": shortened,
    }
    result: Json = json.loads(anonymous(json.dumps(content, ensure_ascii=False), folders))
    return result


def anonymous(text: str, folders: Mapping[str, str]) -> str:
    """Replace folders, ports and the ids of a run; equal ids stay equal."""
    for folder, name in folders.items():
        text = text.replace(folder, name)
    for pattern, place in PLACES.items():
        text = re.sub(pattern, place, text)
    for pattern, name in IDS.items():
        found: dict[str, str] = {}
        for match in re.finditer(pattern, text):
            found.setdefault(match[0], match.expand(name).format(len(found) + 1))
        text = re.sub(pattern, lambda match: found[match[0]], text)  # noqa: B023 - used at once
    return text


def _cut(value: Any) -> Any:
    match value:
        case str() if len(value) > KEPT_CHARACTERS and not value.endswith(" characters]"):
            cut = len(value) - KEPT_CHARACTERS
            return value[:KEPT_CHARACTERS] + MARK.format(cut)
        case list():
            return [_cut(each) for each in value]
        case dict():
            return {key: _cut(each) for key, each in value.items()}
    return value


def record(name: str) -> Json:
    """Run an agent against the stub."""
    agent = BY_ID[name]
    with tempfile.TemporaryDirectory() as scratch, recording_stub() as (stub, url):
        folders = Folders.below(Path(scratch))
        result = agent.run(url, folders, PROMPT)
        assert result.returncode == 0, result.stderr
        programs = str(INSTALLED / agent.manifest)
        names = {
            str(folders.project): PROJECT, str(folders.home): HOME, programs: PROGRAMS
        }  # fmt: skip
        return stored(agent, stub.requests, names)


def leaks(text: str) -> Iterator[str]:
    """Texts that look like a path, an address or a secret of the machine that recorded."""
    for pattern in LEAKS:
        yield from (match[0] for match in re.finditer(pattern, text))


LEAKS = (
    r"/(?:tmp|work|root|var|mnt|srv|opt|home)/(?!user\b|agents\b|opencode\b)[\w.-]+",
    r"\b(?!127\.0\.0\.1)\d{1,3}(?:\.\d{1,3}){3}\b",
    r"[\w.+-]+@[\w-]+\.[a-z]{2,}\b",
    r"\b(?:sk|ghp|hf|xox[bp])[-_][\w-]{16,}",
    r"\b(?!0{8}-0{4}-)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b",
    r"\b(?=[^\W_]*\d)(?=[^\W_]*[a-z])[0-9A-Za-z]{32,}\b",
)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in sys.argv[1:] or BY_ID:
        text = json.dumps(record(each), indent=1, ensure_ascii=False)
        (FOLDER / f"{each}.json").write_text(f"{text}\n", encoding="utf-8")
