"""Answers each case of the corpus with the demo model, through a gateway and its HTTP API."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from scripts.constraint_corpus.cases import Case
from scripts.constraint_corpus.outcome import VALUE_ENDED, Answer, Outcome, judged, refused
from tests.gateway_process import ROOT
from tests.vllm.constrained_answers import LOGIT_BIAS

AT_ONCE = 120  # cases: with two answers each, almost as many as the engine has slots
# The first is nearly greedy, so that a model which repeats itself does so; the second is streamed.
_SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 0.1, "seed": 1},
    {"temperature": 1, "seed": 2, "stream": True},
)
_JSON = {"content-type": "application/json"}
_MAX_TOKENS = 100
_END = 2  # the token that ends an answer, where the grammar allows it
_COMMON = {
    "model": "demo",
    "messages": [{"role": "user", "content": "What is Triton?"}],
    "logit_bias": {str(token): bias for token, bias in {**LOGIT_BIAS, _END: 4.0}.items()},
}


async def answer_all(url: str, corpus: Sequence[Case]) -> AsyncIterator[Outcome]:
    """Outcomes as they come."""
    room = asyncio.Semaphore(AT_ONCE)
    # The gateway closes idle connections after some seconds, maybe while a request is on its way.
    limits = httpx.Limits(max_connections=AT_ONCE * len(_SAMPLING), keepalive_expiry=1)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:

        async def one(case: Case) -> Outcome:
            async with room:
                return await _outcome(client, case)

        for done in asyncio.as_completed([asyncio.create_task(one(case)) for case in corpus]):
            yield await done


async def _outcome(client: httpx.AsyncClient, case: Case, max_tokens: int = _MAX_TOKENS) -> Outcome:
    """All answers at once: the gateway compiles their constraint once."""
    common = {**_COMMON, "max_tokens": max_tokens, **case.fields()}
    bodies = [{**common, **sampling} for sampling in _SAMPLING]
    posts = [  # in ASCII: schemas may contain surrogates
        client.post("/v1/chat/completions", content=json.dumps(body), headers=_JSON)
        for body in bodies
    ]
    replies = await asyncio.gather(*posts)
    for reply in replies:
        if reply.status_code == 400:
            return refused(case, reply.json()["error"]["message"])
        if reply.status_code != 200:
            return Outcome(case, "finding", f"status {reply.status_code}: {reply.text[:200]}")
    answers = [
        _streamed(case, reply.text) if "stream" in body else _whole(case, reply.json())
        for body, reply in zip(bodies, replies, strict=True)
    ]
    outcome = judged(case, answers)
    if outcome.detail.startswith(VALUE_ENDED) and max_tokens == _MAX_TOKENS:
        # The last token may have ended the value: with room for one more, the answer ends.
        return await _outcome(client, case, max_tokens + 1)
    return outcome


def _whole(case: Case, body: Any) -> Answer:
    choice = body["choices"][0]
    return _answer(case, [_text(case, choice["message"])], choice["finish_reason"])


def _streamed(case: Case, events: str) -> Answer:
    pieces, reason = [], None
    for line in events.split("\n"):  # answers may contain other line ends
        for choice in _event(line).get("choices", ()):
            pieces.append(_text(case, choice["delta"]))
            reason = choice["finish_reason"] or reason
    return _answer(case, pieces, reason)


def _event(line: str) -> Any:
    return json.loads(line.removeprefix("data: ")) if line.startswith("data: {") else {}


def _answer(case: Case, pieces: list[str], reason: str | None) -> Answer:
    text, finished = "".join(pieces), reason != "length"
    if case.place == "custom tool":
        whole = json.dumps({"input": text})
        text = whole if finished else whole.removesuffix('"}')
    return Answer(text, finished=finished)


def _text(case: Case, message: Any) -> str:
    """The content of a message or of a delta, or the arguments of its call."""
    if not case.called:
        return message.get("content") or ""
    calls: list[dict[str, dict[str, Any]]] = message.get("tool_calls") or [{}]
    (call,) = calls
    if case.place == "custom tool":
        return str(call.get("custom", {}).get("input") or "")
    return str(call.get("function", {}).get("arguments") or "")


def write_repository(folder: Path) -> Path:
    """A model repository with the demo model alone."""
    shutil.copytree(ROOT / "model_repository" / "demo", folder / "demo")
    return folder
