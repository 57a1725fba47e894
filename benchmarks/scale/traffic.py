"""Streams at a constant rate, without retries, and what became of each: for replicas that end while
requests run. Raw sockets, because an HTTP client would cost several times what a gateway does.
"""

import asyncio
import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

PATH = "/v1/chat/completions"
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")
_REPLICA = re.compile(rb"x-served-by: *(\S+)", re.IGNORECASE)
_END = b"data: [DONE]\n\n\r\n0\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Times are those of `time.monotonic`."""

    sent_s: float
    ended_s: float
    first_byte_s: float | None  # None: nothing came
    status: int  # 0: nothing came
    replica: str
    complete: bool  # to `[DONE]`
    tokens: int

    @property
    def lost(self) -> bool:
        """Not answered, although nothing of an answer had been sent."""
        return self.status != 200 and not self.complete

    @property
    def cut(self) -> bool:
        return self.status == 200 and not self.complete


def body(tokens: int, model: str = "mock") -> dict[str, Any]:
    """A short chat with so many tokens in the answer."""
    messages = [{"role": "user", "content": "hi"}]
    return {"model": model, "messages": messages, "max_tokens": tokens, "stream": True}


def encoded(fields: Mapping[str, Any]) -> bytes:
    content = json.dumps(fields).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + content


async def ask(port: int, message: bytes) -> Answer:
    """One request on a connection of its own. Never raises for what the other side does."""
    sent_s = time.monotonic()
    received, first_s = bytearray(), None
    with suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(message)
            while data := await reader.read(65536):
                first_s = first_s or time.monotonic()
                received += data
        finally:
            writer.close()
    status, replica = _STATUS.match(received), _REPLICA.search(received)
    return Answer(
        sent_s=sent_s,
        ended_s=time.monotonic(),
        first_byte_s=first_s,
        status=int(status[1]) if status else 0,
        replica=replica[1].decode() if replica else "",
        complete=received.endswith(_END),
        tokens=received.count(b'"content":"'),
    )


class Stream:
    """Requests at a constant rate, each sent when it is due, whatever became of the others."""

    def __init__(self, port: int, *, per_s: float, tokens: int) -> None:
        self._port = port
        self._interval_s = 1 / per_s
        self._message = encoded(body(tokens))
        self._answers: list[asyncio.Task[Answer]] = []
        self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        due_s = time.monotonic()
        while True:
            self._answers.append(asyncio.create_task(ask(self._port, self._message)))
            due_s += self._interval_s
            await asyncio.sleep(due_s - time.monotonic())

    async def stop(self) -> list[Answer]:
        """Sends no further one, and waits for all answers."""
        self._sending.cancel()
        return await asyncio.gather(*self._answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of a rate of requests while something happened at `at_s`."""

    requests: int
    per_s: float  # that were sent
    lost: int  # without a byte of an answer
    errors: int  # of those, with a status of 500 or more
    cut: int  # streams that had begun
    errors_s: float  # from `at_s` to the start of the last request that was lost; 0 for none
    ttft_p99_s: float  # of the complete ones

    @classmethod
    def of(cls, answers: Sequence[Answer], at_s: float) -> "Outcome":
        lost = [each for each in answers if each.lost]
        times = sorted(
            each.first_byte_s - each.sent_s
            for each in answers
            if each.complete and each.first_byte_s
        )
        span_s = max(each.sent_s for each in answers) - min(each.sent_s for each in answers)
        return cls(
            requests=len(answers),
            per_s=len(answers) / span_s,
            lost=len(lost),
            errors=sum(each.status >= 500 for each in lost),
            cut=sum(each.cut for each in answers),
            errors_s=max([0.0, *(each.sent_s - at_s for each in lost)]),
            ttft_p99_s=times[int(0.99 * (len(times) - 1))] if times else 0.0,
        )
