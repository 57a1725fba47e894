"""A gateway under random load for a time: with the same seed each client makes the same choices."""

import asyncio
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from scripts.soak import models
from scripts.soak.client import Client
from scripts.soak.memory import Sample, sample
from scripts.soak.report import Report, Tally, report
from scripts.soak.scenarios import (
    ENGINE_ROWS,
    FAILURES,
    ROWS,
    Row,
    fill_media_pools,
    kill,
)
from tests.gateway_process import GatewayProcess
from tests.ports import free_port
from tests.resilience.faults.invariants import no_trace_left

OPTIONS = (
    "--model-control-mode=explicit",
    "--enable-model-management",
    "--send-timeout-s=3",  # shorter than the longest stall of a client
    "--allow-client-shm=true",
    "--max-stored-image-bytes=4000000",  # full soon: see `models.write`
)
# Makes glibc's allocator return freed memory at once. By default it keeps up to 100 MB more,
# in steps of 25 as large prompts come and go, and grows slowly for an hour without a leak.
ALLOCATOR = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
}
# So that no model stays down for the rest of the run (docs/engine-health.md).
KILL_OPTIONS = ("--engine-max-restarts=1000", "--engine-restart-window-s=60")
_BETWEEN_KILLS_S = (10, 40)
# Of a model that has lost its process: the status, or the last event of a stream.
_LOST = re.compile(r"Unexpected: (50[34] |last event: '\{\"error)")
# Triton keeps these of each stub that is lost with a request in flight (docs/engine-health.md).
_KEPT_THREADS, _KEPT_DESCRIPTORS = 36, 4
_KEPT_REQUESTS = ("openai_frontend_unreleased_requests", "openai_frontend_buffered_body_bytes")
_RECOVERS_WITHIN_S = 180
_ONE_S = 180  # limit for one scenario
_SAMPLE_S = 1.0
_BURST, _FREQUENT = 32, 4  # concurrent requests of scenarios of at least this weight
_GROWTH_BYTES = 2**30  # not a check of memory: the slope is


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The load of a soak and its limits."""

    seconds: float
    seed: int
    clients: int = 24
    pause_s: float = 0.05  # average pause of a client between two requests
    engine: bool = False
    kill: bool = False  # processes of models, at random
    scenarios: Sequence[str] = ()  # by name; empty: all
    leak_bytes: int = 0  # leaked by each request to the model `talker`
    slope_limit_mb_h: float = 1.0
    noise_mb: float = 3.0

    @property
    def rows(self) -> Sequence[Row]:
        rows = (*ROWS, *ENGINE_ROWS) if self.engine else ROWS
        return [row for row in rows if not self.scenarios or row.name in self.scenarios]


class Soak:
    """One run."""

    def __init__(self, plan: Plan, client: Client) -> None:
        self._plan = plan
        self._client = client
        self.tallies = {row.name: Tally() for row in plan.rows}
        self.samples: list[Sample] = []

    async def warm_up(self) -> None:
        """Run each scenario once, and the frequent ones many times at once to fill the thread
        pools.
        """
        chance = random.Random(self._plan.seed)
        if self._plan.engine:
            await fill_media_pools(self._client)
        for row in self._plan.rows:
            times = _BURST if row.weight >= _FREQUENT else 1
            await asyncio.gather(*[self._play(row, chance) for _ in range(times)])

    async def run(self) -> None:
        """Run the load and sample the process each second."""
        over = time.monotonic() + self._plan.seconds
        clients = [self._one_client(number, over) for number in range(self._plan.clients)]
        killer = [self._kill(over)] if self._plan.kill else []
        await asyncio.gather(self._watch(over), *clients, *killer)

    async def _kill(self, over: float) -> None:
        chance = random.Random(f"{self._plan.seed}:kill")
        while (pause_s := chance.uniform(*_BETWEEN_KILLS_S)) < over - time.monotonic():
            await asyncio.sleep(pause_s)
            await kill(self._client, chance)

    async def recover(self) -> None:
        """After kills: wait until all models are ready, and see that each scenario succeeds."""
        async with asyncio.timeout(_RECOVERS_WITHIN_S):
            while not await asyncio.to_thread(self._client.gateway.ready):  # noqa: ASYNC110
                await asyncio.sleep(0.5)
        chance = random.Random(self._plan.seed)
        for row in self._plan.rows:
            await self._play(row, chance, alive=True)

    async def _one_client(self, number: int, over: float) -> None:
        chance = random.Random(f"{self._plan.seed}:{number}")
        weights = [row.weight for row in self._plan.rows]
        while time.monotonic() < over:
            (row,) = chance.choices(self._plan.rows, weights)
            # a separate generator: the duration of one scenario does not change the next choice
            await self._play(row, random.Random(chance.random()))
            await asyncio.sleep(chance.expovariate(1 / self._plan.pause_s))

    async def _play(self, row: Row, chance: random.Random, *, alive: bool = False) -> None:
        tally, start = self.tallies[row.name], time.monotonic()
        try:
            async with asyncio.timeout(_ONE_S):
                await row.play(self._client, chance)
        except FAILURES as error:
            kind = f"{type(error).__name__}: {error}"[:200]
            if self._plan.kill and row.in_process and not alive and _LOST.match(kind):
                tally.lost += 1
            else:
                tally.errors[kind] += 1
        else:
            tally.seconds.append(time.monotonic() - start)

    async def _watch(self, over: float) -> None:
        process = psutil.Process(self._client.gateway.pid)
        step = min(_SAMPLE_S, self._plan.seconds / 60)
        while time.monotonic() < over:
            self.samples.append(sample(process))
            await asyncio.sleep(step)


async def soak(folder: Path, plan: Plan) -> Report:
    """Start a gateway in `folder`, load it, stop it, and return the report."""
    repository = folder / "models"
    models.write(repository, leak_bytes=plan.leak_bytes, engine=plan.engine)
    log = folder / "log"
    grpc_port = free_port()
    options = (*OPTIONS, f"--grpc-port={grpc_port}", *(KILL_OPTIONS if plan.kill else ()))
    with GatewayProcess(repository, log, *options, environment=ALLOCATOR) as gateway:
        await asyncio.to_thread(gateway.wait_until_ready)
        client = Client(gateway, repository, clients=plan.clients, grpc_port=grpc_port)
        run = Soak(plan, client)
        left = ""
        try:
            await run.warm_up()
            async with no_trace_left(gateway, deadline_s=60, growth_bytes=_GROWTH_BYTES) as kept:
                await run.run()
                if plan.kill:
                    await run.recover()
                    lost = client.killed["stubs"]
                    kept.threads, kept.descriptors = _KEPT_THREADS * lost, _KEPT_DESCRIPTORS * lost
                    kept.in_hand = _KEPT_REQUESTS
                await client.close()
        except AssertionError as error:
            left = str(error)
        finally:
            await client.close()
        code = await asyncio.to_thread(gateway.stop)
        left += f"\nthe gateway ended with {code}" if code else ""
    return report(
        run.tallies, run.samples, seed=plan.seed, left=left.strip(), killed=dict(client.killed),
        slope_limit_mb_h=plan.slope_limit_mb_h, noise_mb=plan.noise_mb,
    )  # fmt: skip
