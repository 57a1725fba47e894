"""Tokens per second and CPU per token, beside `vllm serve` with the same engine and flags."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.peers import model
from benchmarks.peers.document import cores
from benchmarks.peers.plan import Plan
from benchmarks.peers.rounds import Result, Rounds
from benchmarks.peers.servers import (
    DEFAULT,
    GATEWAY,
    GENERATE,
    LEAN,
    ON_GPU,
    VLLM,
    PeerServer,
    Setup,
)

ON_CPU_PLAN = Plan(rounds=1, streams=(1, 32))
ON_GPU_PLAN = Plan(rounds=1, streams=(1, 32, 128))


def measure(folder: Path, *, cpu: bool, say: Callable[[str], None]) -> Iterator[Result]:
    """Each load on both servers in turn. Raises `ServerFailed` and `ClientFailed`."""
    folder.mkdir()
    plan = ON_CPU_PLAN if cpu else ON_GPU_PLAN
    weights = model.write_llama(folder / "weights", model.SMALL if cpu else model.LARGE)
    arguments: dict[str, Any] = GENERATE if cpu else GENERATE | ON_GPU
    setup = Setup(folder, weights, LEAN if cpu else DEFAULT, arguments)
    with ExitStack() as stack:
        servers = []
        for name in (GATEWAY, VLLM):
            say(f"starting {name} for the throughput")
            servers.append(stack.enter_context(PeerServer(name, setup)))
        rounds = Rounds(setup.flags, servers, cores(), say)
        for streams in plan.streams:
            yield from rounds.run(plan.closed(streams), 1)
