"""Records the answers to all requests, without what differs between two runs.

`python -m tests.api.recorded.answers` writes the file that the test compares with.
"""

import asyncio
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import httpx

from tests.api.models.conftest import live
from tests.api.recorded import models
from tests.api.recorded.requests import Request, requests
from tests.gateway_process import ROOT

FILE = ROOT / "tests" / "data" / "recorded_answers.json"
HEADERS = ("content-type", "cache-control", "retry-after", "allow", "www-authenticate")
# Pattern -> what replaces it
_VARYING = {
    r"\b(chatcmpl|cmpl|chatcmpl-tool|call|req|embd|rerank|score|resp|msg)([-_])[0-9a-zA-Z]{16,}":
        r"\1\2ID",
    r'"(created|loaded_at|expires_at)":\d+': r'"\1":0',
    r'"(obfuscation)":"[^"]*"': r'"\1":"?"',
    r'"first_token_latency":[^,}]+': '"first_token_latency":0',
    r"\bfp_[0-9a-f]+": "fp_ID",
}  # fmt: skip
_VARYING_PATHS = {"/version", "/", "/v2"}  # versions of packages
_TEXTS = {"content", "text", "arguments", "reasoning", "reasoning_content", "input", "delta"}


async def recorded() -> dict[str, dict[str, Any]]:
    """Name of a request -> status, headers and body of its answer."""
    with tempfile.TemporaryDirectory() as folder:
        models.write(Path(folder))
        async with live(Path(folder), model_control_mode="none") as gateway:
            return {each.name: await _answer(gateway.client, each) for each in requests()}


async def _answer(client: httpx.AsyncClient, request: Request) -> dict[str, Any]:
    response = await client.request(
        request.method, request.path, content=request.content, headers=request.headers
    )
    headers = {name: response.headers[name] for name in HEADERS if name in response.headers}
    if request.path in _VARYING_PATHS:
        return {"status": response.status_code, "headers": headers}
    text = response.text
    for pattern, replacement in _VARYING.items():
        text = re.sub(pattern, replacement, text)
    stream = headers.get("content-type", "").startswith("text/event-stream")
    return {
        "status": response.status_code,
        "headers": headers,
        "body": merged_events(text) if stream else text,
    }


def merged_events(stream: str) -> list[str]:
    """The events of a stream, those of each choice together. Neighbours of the same shape are one,
    with the texts and lists of both: how many tokens an event has, and which choice is first,
    depends on time.
    """
    choices: dict[int, list[Any]] = {}
    for line in filter(None, stream.split("\n")):
        data = line.removeprefix("data: ")
        event = json.loads(data) if data.startswith("{") else line
        events = choices.setdefault(_choice(event), [])
        if events and _shape(events[-1]) == _shape(event):
            events[-1] = _joined(events[-1], event)
        else:
            events.append(event)
    merged = [event for index in sorted(choices) for event in choices[index]]
    return [each if isinstance(each, str) else json.dumps(each) for each in merged]


_LAST = 1000


def _choice(event: Any) -> int:
    """The index of the event's choice; events without one are behind the others."""
    if isinstance(event, str) or not event.get("choices"):
        return _LAST
    return int(event["choices"][0]["index"])


def _shape(value: Any, name: str = "") -> Any:
    """Without texts that grow, list items and numbers."""
    if isinstance(value, dict):
        return [(key, name == "usage" or _shape(each, key)) for key, each in value.items()]
    if isinstance(value, list):
        items = [_shape(each) for each in value if isinstance(each, dict)]
        return ["list", items if name in ("choices", "tool_calls") else []]
    if isinstance(value, str):
        return "text" if name in _TEXTS else value
    return type(value).__name__ if isinstance(value, float) else value


def _joined(first: Any, second: Any, name: str = "") -> Any:
    if isinstance(first, dict):
        return {key: _joined(value, second[key], key) for key, value in first.items()}
    if isinstance(first, list):
        if name in ("choices", "tool_calls"):
            return [_joined(*pair) for pair in zip(first, second, strict=True)]
        return first + second
    return first + second if isinstance(first, str) and name in _TEXTS else second


def write(answers: dict[str, dict[str, Any]]) -> None:
    lines = (f"{json.dumps(name)}: {json.dumps(answer)}" for name, answer in answers.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write(asyncio.run(recorded()))
