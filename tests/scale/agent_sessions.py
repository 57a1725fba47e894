"""Sessions of coding agents, made of their recorded requests, and what of their prompts is cached.

A recording has a task's first two requests, with long texts cut. A session has texts of the full
length again, which differ by session, ids of its own, and more turns: they repeat the call and its
result.
"""

import json
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import httpx

from tests.coding_agents import recording
from tests.coding_agents.stub import Json

MODEL = "scripted"  # after the first model of tests/scale/conftest.py, which smg serves alone
# Arguments of `mock_models.write_with_turns`
SCRIPT: Json = {"turns": [{"text": "Done."}], "prefix_cache_blocks": 65_536}
TURNS = 5
# Agents that name their session in a header
BY_HEADER = ("codex-responses", "pi-responses", "opencode-messages", "opencode-chat")
# Agents that do not, or only in the body
BY_KEY = ("qwen-code-responses", "qwen-code-messages", "pi-messages", "pi-chat", "qwen-code-chat")
_CUT = re.compile(r"\[cut: (\d+) characters\]")
_SESSION_ID = re.compile(r"0{8}-0{4}-[0-9a-f]0{3}-8000-0{11}1|(?<=ses_)0{25}1|local-key")
_STEP_ID = re.compile(r'"(call|toolu|fc|rs)_0"')
_OWN_HEADERS = {"host", "connection", "content-length", "accept-encoding"}  # of the connection


@dataclass(frozen=True, slots=True)
class CachedPrompt:
    """What one turn's answer says about its prompt."""

    session: str
    turn: int  # from 1
    gateway: str
    tokens: int
    cached: int

    @property
    def share(self) -> float:
        return self.cached / self.tokens


class AgentSession:
    """One agent's conversation, turn by turn."""

    def __init__(self, recorded: str, name: str) -> None:
        """`recorded` names the recording. A session has texts and a key of its own."""
        self.name = f"{recorded} {name}"
        asked = [each for each in recording.requests(recorded) if (each["body"] or {}).get("tools")]
        first, second = (self._own(each) for each in asked[:2])
        self._history = "input" if "input" in first["body"] else "messages"
        self._begun = len(first["body"][self._history])
        self._first, self._second = first, second

    def request(self, turn: int) -> Json:
        """The recorded request, with as many calls and results as precede this turn, from 1."""
        if turn == 1:
            return self._first
        body = self._second["body"]
        history, step = body[self._history][: self._begun], body[self._history][self._begun :]
        for number in range(turn - 1):
            history += json.loads(_STEP_ID.sub(rf'"\1_{number}"', json.dumps(step)))
        return {**self._second, "body": {**body, self._history: history}}

    async def ask(self, client: httpx.AsyncClient, turn: int) -> CachedPrompt:
        """Send a turn's request, which must succeed."""
        request = self.request(turn)
        headers = {
            name: value for name, value in request["headers"].items() if name not in _OWN_HEADERS
        }
        answer = await client.post(request["path"], json=request["body"], headers=headers)
        assert answer.status_code == 200, answer.text
        tokens, cached = _prompt(answer.text)
        gateway = answer.headers["x-served-by"]
        return CachedPrompt(self.name, turn, gateway, tokens, cached)

    def _own(self, request: Json) -> Json:
        """The request with this session's ids and texts."""
        own = str(uuid.uuid5(uuid.NAMESPACE_URL, self.name))
        text = _SESSION_ID.sub(own, json.dumps({**request, "body": None}))
        body = _SESSION_ID.sub(own, json.dumps({**request["body"], "model": MODEL}))
        body = _CUT.sub(
            lambda match: (own * (int(match[1]) // len(own) + 1))[: int(match[1])], body
        )
        return {**json.loads(text), "body": json.loads(body)}


async def interleaved(
    client: httpx.AsyncClient, sessions: Sequence[AgentSession]
) -> list[CachedPrompt]:
    """All turns of the sessions: each session's first, then each one's second, and so on. Each
    time another session begins, so that turns in rotation do not meet the same gateway.
    """
    return [
        await session.ask(client, turn)
        for turn in range(1, TURNS + 1)
        for session in [*sessions[turn:], *sessions[:turn]]
    ]


def sessions(recordings: Sequence[str], run: str) -> list[AgentSession]:
    """Two sessions of each recording, which no other run has."""
    return [AgentSession(name, f"{run} {number}") for number in (1, 2) for name in recordings]


def _prompt(events: str) -> tuple[int, int]:
    """The tokens of the prompt, and the cached ones. Those of a message are in its first event."""
    for event in _data(events):
        match event:
            case {"type": "message_start", "message": {"usage": usage}}:
                cached = usage["cache_read_input_tokens"]
                return usage["input_tokens"] + cached, cached
            case {"type": "response.completed", "response": {"usage": usage}}:
                return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
            case {"object": "chat.completion.chunk", "usage": dict(usage)}:
                return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
    raise AssertionError(f"no event has the usage: {events[-500:]}")


def _data(events: str) -> Iterator[Json]:
    for line in events.splitlines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))
