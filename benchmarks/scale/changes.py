"""What clients see when replicas change: one is killed, all are updated, their number follows the
load. The mock engine answers.
"""

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from benchmarks.scale import traffic
from benchmarks.scale.fleet import Fleet, Replicas
from benchmarks.scale.traffic import Answer, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Rates that two cores can carry, which gateways, router and client share."""

    per_s: float = 200.0  # streams of `tokens`, while a replica is killed
    update_per_s: float = 25.0  # beside the long streams of an update
    tokens: int = 10
    settle_s: float = 5.0  # before and after what happens
    killed_s: float = 20.0  # after a kill
    long_streams: int = 10
    long_s: float = 180.0
    token_rate: int = 200  # per second and stream
    slots: int = 16  # of a replica that is scaled
    downscale_delay_s: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """One of three replicas was killed."""

    outcome: Outcome
    goodput: float  # share of the requests sent from 2 s after it on that were completed
    back_s: float | None  # until the first answer of its successor; None: not in the time measured


async def kill(gateways: Fleet, plan: Plan) -> Killed:
    stream = traffic.Stream(gateways.port, per_s=plan.per_s, tokens=plan.tokens)
    await asyncio.sleep(plan.settle_s)
    at_s = time.monotonic()
    await asyncio.to_thread(gateways.kill)
    await asyncio.sleep(plan.killed_s)
    answers = await stream.stop()
    later = [each for each in answers if each.sent_s > at_s + 2]
    return Killed(
        outcome=Outcome.of(answers, at_s),
        goodput=sum(each.complete for each in later) / len(later),
        back_s=_back_s(answers, at_s),
    )


def _back_s(answers: list[Answer], at_s: float) -> float | None:
    """A new name, or the name of the one whose answers had stopped."""
    before = {each.replica for each in answers if each.complete and each.ended_s < at_s}
    after = [each for each in answers if each.complete and each.sent_s > at_s]
    [*new] = (each.sent_s - at_s for each in after if each.replica not in before)
    gaps = {
        name: _longest_gap(
            [each.sent_s for each in answers if each.replica == name and each.complete]
        )
        for name in before
    }
    gap_s, ended_s = max(gaps.values(), default=(0.0, 0.0))
    if new:
        return min(new)
    return ended_s - at_s if gap_s > 1 and ended_s > at_s else None


def _longest_gap(times: list[float]) -> tuple[float, float]:
    """Its length, and when it ended."""
    times = sorted(times)
    return max(((b - a, b) for a, b in itertools.pairwise(times)), default=(0.0, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
    """All replicas were replaced while streams ran."""

    outcome: Outcome  # of the short requests
    streams: int  # long ones
    streams_cut: int  # or lost
    stream_s: float  # the shortest
    update_s: float


async def update(gateways: Fleet, plan: Plan) -> Updated:
    stream = traffic.Stream(gateways.port, per_s=plan.update_per_s, tokens=plan.tokens)
    length = int(plan.long_s * plan.token_rate)
    message = traffic.encoded(traffic.body(length))
    long = [
        asyncio.create_task(traffic.ask(gateways.port, message)) for _ in range(plan.long_streams)
    ]
    await asyncio.sleep(plan.settle_s)
    at_s = time.monotonic()
    await asyncio.to_thread(gateways.roll)
    update_s = time.monotonic() - at_s
    ended = await asyncio.gather(*long)
    answers = await stream.stop()
    return Updated(
        outcome=Outcome.of(answers, at_s),
        streams=len(ended),
        streams_cut=sum(not each.complete for each in ended),
        stream_s=min(each.ended_s - each.sent_s for each in ended),
        update_s=update_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """From one replica to three at twice the load of one, and back."""

    requests: int
    failed: int
    up_s: float  # until three answer
    down_s: float  # from the end of the load until one is left
    turns: int  # how often the number of replicas changed its direction; 1: up and down
    ttft_p99_before_s: float  # in the first 5 s
    ttft_p99_after_s: float  # from 10 s after three answer


async def scale(gateways: Replicas, plan: Plan) -> Scaled:
    cluster = gateways.cluster

    def change(arguments: dict[str, object]) -> None:
        arguments["settings"] = {
            "max_concurrent_requests": plan.slots,
            "max_queue_size": 8 * plan.slots,
            "behind_router": False,
        }
        arguments["replicas"] = {
            "min": 1,
            "max": 3,
            "upscale_delay_s": 5,
            "downscale_delay_s": plan.downscale_delay_s,
        }

    await asyncio.to_thread(cluster.update, change)
    await asyncio.to_thread(cluster.wait_for, 1)
    await asyncio.to_thread(cluster.only_replica)
    counts = _Counts(cluster.replicas)
    began_s, users = time.monotonic(), _Users(gateways.port, 2 * plan.slots)
    await asyncio.to_thread(cluster.wait_for, 3)
    up_s = time.monotonic() - began_s
    await asyncio.sleep(10 + 2 * plan.settle_s)
    answers = await users.stop()
    ended_s = time.monotonic()
    await asyncio.to_thread(cluster.wait_for, 1)
    down_s = time.monotonic() - ended_s
    await asyncio.to_thread(cluster.only_replica)
    return Scaled(
        requests=len(answers),
        failed=sum(not each.complete for each in answers),
        up_s=up_s,
        down_s=down_s,
        turns=counts.stop(),
        ttft_p99_before_s=_ttft_p99(answers, began_s, began_s + 5),
        ttft_p99_after_s=_ttft_p99(answers, began_s + up_s + 10, ended_s),
    )


def _ttft_p99(answers: list[Answer], after_s: float, before_s: float) -> float:
    times = sorted(
        each.first_byte_s - each.sent_s
        for each in answers
        if each.first_byte_s and after_s < each.sent_s < before_s
    )
    return times[int(0.99 * (len(times) - 1))]


class _Users:
    """Each sends its next request when it has its answer, of half a second."""

    def __init__(self, port: int, count: int) -> None:
        self._message = traffic.encoded(traffic.body(100))
        self._ended = False
        self._asking = [asyncio.create_task(self._ask(port)) for _ in range(count)]

    async def _ask(self, port: int) -> list[Answer]:
        answers = []
        while not self._ended:
            answers.append(await traffic.ask(port, self._message))
        return answers

    async def stop(self) -> list[Answer]:
        self._ended = True
        return [each for answers in await asyncio.gather(*self._asking) for each in answers]


class _Counts:
    """Watches the number of replicas, with those that start or stop."""

    def __init__(self, replicas: Callable[[], list[psutil.Process]]) -> None:
        self._replicas = replicas
        self._seen = [len(replicas())]
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(1)
            self._seen.append(len(await asyncio.to_thread(self._replicas)))

    def stop(self) -> int:
        """How often it changed its direction."""
        self._watching.cancel()
        steps = [b - a for a, b in zip(self._seen, self._seen[1:], strict=False) if a != b]
        return sum((a > 0) != (b > 0) for a, b in itertools.pairwise(steps))
