"""A gateway under random load for a time: with the same seed each client makes the same choices."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.gateway_process import GatewayProcess
from tests.resilience.faults.invariants import no_trace_left
from tests.resilience.soak import models
from tests.resilience.soak.client import Client
from tests.resilience.soak.memory import Sample, sample
from tests.resilience.soak.report import Report, Tally, report
from tests.resilience.soak.scenarios import ENGINE_ROWS, FAILURES, ROWS, Row, fill_media_pools

OPTIONS = (
    "--model-control-mode=explicit",
    "--enable-model-management",
    "--send-timeout-s=3",  # shorter than the longest stall of a client
    "--max-stored-image-bytes=4000000",  # full soon: see `models.write`
)
# Makes glibc's allocator return freed memory at once. By default it keeps up to 100 MB more,
# in steps of 25 as large prompts come and go, and grows slowly for an hour without a leak.
ALLOCATOR = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
}
_ONE_S = 60  # limit for one scenario
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
        await asyncio.gather(self._watch(over), *clients)

    async def _one_client(self, number: int, over: float) -> None:
        chance = random.Random(f"{self._plan.seed}:{number}")
        weights = [row.weight for row in self._plan.rows]
        while time.monotonic() < over:
            (row,) = chance.choices(self._plan.rows, weights)
            # a separate generator: the duration of one scenario does not change the next choice
            await self._play(row, random.Random(chance.random()))
            await asyncio.sleep(chance.expovariate(1 / self._plan.pause_s))

    async def _play(self, row: Row, chance: random.Random) -> None:
        tally, start = self.tallies[row.name], time.monotonic()
        try:
            async with asyncio.timeout(_ONE_S):
                await row.play(self._client, chance)
        except FAILURES as error:
            tally.errors[f"{type(error).__name__}: {error}"[:200]] += 1
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
    with GatewayProcess(repository, log, *OPTIONS, environment=ALLOCATOR) as gateway:
        await asyncio.to_thread(gateway.wait_until_ready)
        client = Client(gateway, repository, clients=plan.clients)
        run = Soak(plan, client)
        left = ""
        try:
            await run.warm_up()
            async with no_trace_left(gateway, deadline_s=30, growth_bytes=_GROWTH_BYTES):
                await run.run()
                await client.close()
        except AssertionError as error:
            left = str(error)
        finally:
            await client.close()
        code = await asyncio.to_thread(gateway.stop)
        left += f"\nthe gateway ended with {code}" if code else ""
    return report(
        run.tallies, run.samples, seed=plan.seed, left=left.strip(),
        slope_limit_mb_h=plan.slope_limit_mb_h, noise_mb=plan.noise_mb,
    )  # fmt: skip
