"""Checks that a fault leaves nothing behind in the gateway's process.

    async with no_trace_left(gateway):
        ...  # the fault and its effect on clients

It checks from outside only: /proc through psutil, `/metrics`, and the log. The error has one line
for each leak.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

# Gauges of unfinished work. Every gateway's /metrics must have them, or the check would be void.
REQUIRED_GAUGES = (
    "openai_frontend_requests_running",
    "openai_frontend_unreleased_requests",
    "openai_frontend_buffered_body_bytes",
    "openai_frontend_buffered_audio_bytes",
    "nv_inference_pending_request_count",
)
_IN_HAND = re.compile(
    r"openai_frontend_\w*"
    r"(running|waiting|unreleased|queued|at_work|in_flight|active|streams|open|buffered)\w*"
    r"|nv_inference_pending_request_count"
)
TRACES = (
    "Traceback (most recent call last)",
    "Task was destroyed",
    "never retrieved",
    "was never awaited",
    "Exception ignored in",
    "Fatal Python error",
    "ResourceWarning",
)
MIB = 2**20

_AT_ONCE = 64  # twice the maximum size of Python's default thread pool
# A busy machine can delay the requests of a round until they come one by one and share a thread.
_ROUNDS_WITHOUT_A_NEW_THREAD = 3
_MOST_ROUNDS = 20
_FILLED: set[psutil.Process] = set()


class Watched(Protocol):
    """A gateway in a separate process, such as `tests.gateway_process.GatewayProcess`."""

    @property
    def pid(self) -> int: ...

    @property
    def url(self) -> str: ...

    def output(self) -> str:
        """Return everything that it has written to stdout and stderr."""
        ...


@dataclass(frozen=True, slots=True)
class Footprint:
    """The resources of a process at one moment."""

    threads: int
    descriptors: int
    children: int  # descendants, including zombies
    memory_bytes: int
    in_hand: Mapping[str, float]  # nonzero gauges of unfinished work, by name and labels


@dataclass
class Kept:
    """What the fault is known to leave behind, for good. The block may set it."""

    threads: int = 0
    descriptors: int = 0
    in_hand: Collection[str] = ()  # names of gauges


@asynccontextmanager
async def no_trace_left(
    gateway: Watched,
    *,
    deadline_s: float = 30,
    growth_bytes: int = 32 * MIB,
    may_log: Collection[str] = (),
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[Kept]:
    """Fail if, `deadline_s` after the block, work is unfinished, the process has more threads,
    descriptors, child processes or memory than before, or the log has one of TRACES.

    Before the block, the gateway should have answered a request of each kind in it, so that what
    the first one creates exists. This function starts all threads of the event loop's pool, which
    Python would start one by one. `growth_bytes` is what an allocator may keep; `may_log` lists the
    TRACES that the fault itself causes; `headers` give access to /metrics if it needs a key.
    """
    async with httpx.AsyncClient(
        base_url=gateway.url, headers={**(headers or {}), "connection": "close"}, timeout=60
    ) as client:
        await _fill_pool(client, gateway)
        before = await _quiet(client, gateway, deadline_s)
        logged, kept = len(gateway.output()), Kept()
        yield kept
        before = replace(
            before,
            threads=before.threads + kept.threads,
            descriptors=before.descriptors + kept.descriptors,
        )
        left = await _left_after(client, gateway, before, kept, growth_bytes, deadline_s)
        left += _traces(gateway.output()[logged:], may_log)
        assert not left, "\n".join(["left in the gateway's process:", *left])


async def _fill_pool(client: httpx.AsyncClient, gateway: Watched) -> None:
    """Send requests that need a thread, all at once, until three rounds start no thread; once for
    each process. Otherwise a fault that needs one thread more than any before it seems to leak it.
    """
    process = psutil.Process(gateway.pid)
    if process in _FILLED:  # psutil compares pid and start time
        return
    unchanged = 0
    for _ in range(_MOST_ROUNDS):
        threads = process.num_threads()
        await asyncio.gather(*[client.get("/metrics") for _ in range(_AT_ONCE)])
        unchanged = unchanged + 1 if process.num_threads() == threads else 0
        if unchanged == _ROUNDS_WITHOUT_A_NEW_THREAD:
            break
    _FILLED.add(process)


async def _quiet(client: httpx.AsyncClient, gateway: Watched, deadline_s: float) -> Footprint:
    """Return the footprint after earlier work has ended."""
    for _ in range(int(deadline_s / 0.1)):
        found = await _footprint(client, gateway)
        if not found.in_hand:
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(f"the gateway was at work before: {found.in_hand}")


async def _left_after(
    client: httpx.AsyncClient,
    gateway: Watched,
    before: Footprint,
    kept: Kept,
    growth_bytes: int,
    deadline_s: float,
) -> list[str]:
    """Return what still exceeds the footprint from before when the deadline passes."""
    for _ in range(int(deadline_s / 0.1)):
        now = await _footprint(client, gateway)
        in_hand = {
            sample: value
            for sample, value in now.in_hand.items()
            if sample.partition("{")[0] not in kept.in_hand
        }
        left = _more(before, replace(now, in_hand=in_hand), growth_bytes)
        if not left:
            break
        await asyncio.sleep(0.1)
    return left


def _more(before: Footprint, now: Footprint, growth_bytes: int) -> list[str]:
    counts = [
        ("threads", before.threads, now.threads),
        ("descriptors", before.descriptors, now.descriptors),
        ("child processes", before.children, now.children),
    ]
    left = [f"{name}: {then} before, {count} now" for name, then, count in counts if count > then]
    if now.memory_bytes > before.memory_bytes + growth_bytes:
        grown = (now.memory_bytes - before.memory_bytes) / MIB
        left.append(f"memory: {grown:.1f} MiB more than before")
    return left + [f"in hand: {name} is {value:g}" for name, value in now.in_hand.items()]


def _traces(logged: str, may_log: Collection[str]) -> list[str]:
    found = [trace for trace in TRACES if trace in logged and trace not in may_log]
    return [f"log: {trace}" for trace in found] + ([logged[-4000:]] if found else [])


async def _footprint(client: httpx.AsyncClient, gateway: Watched) -> Footprint:
    response = await client.get("/metrics")
    assert response.status_code == 200, response.text
    process = psutil.Process(gateway.pid)
    return Footprint(
        threads=process.num_threads(),
        descriptors=process.num_fds(),
        children=len(process.children(recursive=True)),
        memory_bytes=process.memory_info().rss,
        in_hand=_in_hand(response.text),
    )


def _in_hand(metrics: str) -> dict[str, float]:
    gauges = [
        family
        for family in text_string_to_metric_families(metrics)
        if family.type == "gauge" and _IN_HAND.fullmatch(family.name)
    ]
    lacking = set(REQUIRED_GAUGES) - {family.name for family in gauges}
    assert not lacking, f"/metrics has no {sorted(lacking)}: nothing would be looked at"
    samples = [sample for family in gauges for sample in family.samples if sample.value]
    return {f"{sample.name}{sample.labels}": sample.value for sample in samples}
