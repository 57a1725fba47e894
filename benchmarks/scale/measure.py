"""Measures how well routers keep conversations on the gateway that has their beginning in its
prefix cache: `make bench-scale`.

Three gateways with the mock engine stand behind each router in turn. The engine simulates vLLM's
prefix cache and the time of prefill, so that cached tokens and latencies depend on the routing
alone. The same conversations also go to one gateway, whose cache is as large as all three.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks import machine, results
from benchmarks.scale import changes, costs, goals
from tests import mock_models
from tests.gateway_process import GatewayProcess
from tests.scale import ray_cluster, routers

ONE_CACHE = "one gateway"
GATEWAYS = 3  # as in the configurations of deploy/
# A gateway's cache holds its third of the plan's conversations with the system prompts, and little
# more. 30,000 tokens/s are an 8B model on one GPU.
_BLOCKS = 8192  # of 16 tokens
_ENGINE = {
    "prefill_tokens_per_second": 30_000,
    "tokens_per_second": 2_000,
    "max_model_len": 65_536,
}
_WORDS = ("stream", "token", "batch", "cache", "prefix", "router", "model", "queue", "worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The conversations, and how many requests run at once. With a quarter as many, the figures
    depend on where a hash happens to put each of them (benchmarks/results/decisions.md).
    """

    conversations: int = 96
    turns: int = 8
    system_prompts: int = 4
    system_words: int = 400
    turn_words: int = 60
    at_once: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All conversations through one router."""

    cached_share: float  # of the prompt tokens
    most_requests: float  # of one gateway, divided by the mean of all
    latency_p50_s: float
    latency_p90_s: float
    router_cpu_us: float  # per request; 0 without a router


def measure(plan: Plan, url: str, *, salt: str, router: psutil.Process | None = None) -> Measured:
    """Sends the conversations; requests with another `salt` find nothing of them in a cache."""
    started_s = _cpu_s(router)
    answers = asyncio.run(_converse(plan, url, {"model": "mock", "cache_salt": salt}))
    cpu_s = _cpu_s(router) - started_s
    places = Counter(answer.gateway for answer in answers)
    latencies = [answer.latency_s for answer in answers]
    return Measured(
        cached_share=sum(each.cached for each in answers) / sum(each.prompt for each in answers),
        most_requests=max(places.values()) / (len(answers) / GATEWAYS),
        latency_p50_s=statistics.median(latencies),
        latency_p90_s=statistics.quantiles(latencies, n=10)[-1],
        router_cpu_us=cpu_s / len(answers) * 1e6,
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    gateway: str
    prompt: int
    cached: int
    latency_s: float


async def _converse(plan: Plan, url: str, fields: Mapping[str, Any]) -> list[_Answer]:
    slots = asyncio.Semaphore(plan.at_once)
    limits = httpx.Limits(max_connections=plan.at_once)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        numbers = range(plan.conversations)
        each = (_conversation(plan, client, slots, number, fields) for number in numbers)
        return [answer for answers in await asyncio.gather(*each) for answer in answers]


async def _conversation(
    plan: Plan,
    client: httpx.AsyncClient,
    slots: asyncio.Semaphore,
    number: int,
    fields: Mapping[str, Any],
) -> list[_Answer]:
    """Each turn has all turns before it, as a chat client sends them."""
    system = number % plan.system_prompts
    messages = [{"role": "system", "content": _text(f"system {system}", plan.system_words)}]
    answers = []
    for turn in range(plan.turns):
        messages.append({"role": "user", "content": _text(f"{number} {turn}", plan.turn_words)})
        body = {**fields, "messages": messages, "max_tokens": 16}
        async with slots:
            started_s = time.perf_counter()
            response = await client.post(
                "/v1/chat/completions",
                json=body,
                headers={"x-session-id": f"{fields['cache_salt']} {number}"},
            )
            latency_s = time.perf_counter() - started_s
        response.raise_for_status()
        usage = response.json()["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        gateway = response.headers["x-served-by"]
        answers.append(_Answer(gateway, usage["prompt_tokens"], cached, latency_s))
        messages.append(response.json()["choices"][0]["message"])
        messages[-1] = {"role": "assistant", "content": messages[-1]["content"]}
    return answers


def _text(seed: str, words: int) -> str:
    """The same words for the same seed, different from the first word on for another."""
    return f"{seed}: " + " ".join(random.Random(seed).choices(_WORDS, k=words))


def _cpu_s(process: psutil.Process | None) -> float:
    if process is None:
        return 0.0
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


STARTS: Mapping[str, Callable[[Path, Sequence[int]], routers.Router]] = {
    "HAProxy, by session": routers.haproxy,
    "Envoy, by session": routers.envoy,
    "smg, by prefix": routers.smg,
    "vllm-router, by prefix": routers.vllm_router,
    "HAProxy, round robin": partial(routers.haproxy, balance="roundrobin"),
}
# Of Ray's own HAProxy, in front of as many replicas
ROUTINGS = ("session", "prefix", "least")


@contextmanager
def started(folder: Path, *, gateways: int, blocks: int) -> Iterator[list[GatewayProcess]]:
    """Gateways that are ready, each with a cache of so many blocks."""
    _write_model(folder / "models", blocks)
    with ExitStack() as processes:
        running = [
            processes.enter_context(
                GatewayProcess(
                    folder / "models",
                    folder / f"gateway{number}.log",
                    f"--replica-name=gateway{number}",
                    "--behind-router",
                )
            )
            for number in range(1, gateways + 1)
        ]
        for each in running:
            each.wait_until_ready()
        yield running


def _write_model(repository: Path, blocks: int) -> None:
    mock_models.write_with_tokenizer(repository, "mock", prefix_cache_blocks=blocks, **_ENGINE)


def run_in_ray(plan: Plan, routing: str) -> Measured:
    """With replicas of Ray Serve as gateways."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_model(folder / "models", _BLOCKS)
        options = f"--routing={routing}"
        with ray_cluster.started(folder, folder / "models", options, replicas=GATEWAYS) as cluster:
            cluster.wait_for(GATEWAYS)
            [haproxy] = cluster.haproxy()
            return measure(plan, cluster.url, salt=routing, router=psutil.Process(haproxy))


def run(plan: Plan, names: Sequence[str], routings: Sequence[str]) -> dict[str, Measured]:
    """By router; the first is one gateway without a router."""
    found = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        started(Path(folder), gateways=1, blocks=GATEWAYS * _BLOCKS) as [gateway],
    ):
        found[ONE_CACHE] = measure(plan, gateway.url, salt=ONE_CACHE)
    with (
        tempfile.TemporaryDirectory() as folder,
        started(Path(folder), gateways=GATEWAYS, blocks=_BLOCKS) as gateways,
    ):
        ports = [each.port for each in gateways]
        for name in names:
            below = Path(folder) / name
            below.mkdir()
            with routers.running(STARTS[name], below, ports) as router:
                process = psutil.Process(router.process.pid)
                found[name] = measure(plan, router.url, salt=name, router=process)
            _say(name)
    for routing in routings:
        name = f"Ray Serve, {routing}"
        found[name] = run_in_ray(plan, routing)
        _say(name)
    return found


def table(plan: Plan, found: Mapping[str, Measured]) -> str:
    """In Markdown."""
    best = found[ONE_CACHE].cached_share
    rows = [
        f"| {name} | {each.cached_share:.0%} | {each.cached_share / best:.0%} "
        f"| {'' if name == ONE_CACHE else f'{each.most_requests:.2f}'} "
        f"| {each.latency_p50_s * 1e3:.0f} | {each.latency_p90_s * 1e3:.0f} "
        f"| {'' if name == ONE_CACHE else f'{each.router_cpu_us:.0f}'} |"
        for name, each in found.items()
    ]
    head = [
        _head(),
        "",
        f"{plan.conversations} conversations of {plan.turns} turns with {plan.system_prompts} "
        f"system prompts, {plan.at_once} requests at once, {GATEWAYS} gateways with the mock "
        f"engine (a prefix cache of {_BLOCKS * 16:,} tokens, prefill of 30,000 tokens/s). "
        f"The one gateway has a cache of {_BLOCKS * 16 * GATEWAYS:,} tokens.",
        "",
        "| | prompt tokens cached | of one cache | busiest gateway / mean | latency p50, ms "
        "| p90, ms | router's CPU per request, us |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    return "\n".join([*head, *rows]) + "\n"


def _head() -> str:
    about = machine.describe()
    return f"{about['cpu']}, {about['cores']} cores, {about['system']}; commit {machine.commit()}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.scale.measure", description=__doc__)
    parser.add_argument(
        "--store",
        action="store_true",
        help="write JSON and table to benchmarks/results",
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--costs", action="store_true", help="measure what replicas and routers cost per token"
    )
    instead.add_argument(
        "--goals",
        action="store_true",
        help="measure what clients see when replicas are killed, updated or scaled",
    )
    given = parser.parse_args(arguments)
    if given.costs:
        return _measure_costs(store=given.store)
    if given.goals:
        return _measure_goals(store=given.store)
    plan = Plan()
    found = run(plan, list(STARTS), ROUTINGS)
    text = table(plan, found)
    sys.stdout.write(text)
    if given.store:
        routed = {name: asdict(each) for name, each in found.items()}
        _store("prefixes", {"plan": asdict(plan), "routers": routed}, text)
    return 0


def _measure_costs(*, store: bool) -> int:
    found = costs.run(_say)
    text = f"{_head()}\n\n{costs.table(found)}"
    sys.stdout.write(text)
    if store:
        _store("costs", costs.document(found), text)
    return 0


def _measure_goals(*, store: bool) -> int:
    plan = changes.Plan()
    found = goals.run(plan, _say)
    text = f"{_head()}\n\n{goals.table(plan, found)}"
    sys.stdout.write(text)
    if store:
        _store("goals", goals.document(plan, found), text)
    return 0


def _store(part: str, values: Mapping[str, Any], text: str) -> None:
    about = {"commit": machine.commit(), "machine": machine.describe()}
    results.store(results.FOLDER, f"scale_{part}", {**about, **values}, text)


def _say(text: str) -> None:
    sys.stderr.write(f"  {text}\n")


if __name__ == "__main__":
    sys.exit(main())
