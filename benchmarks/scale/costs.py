"""What a replica (R1), a router and several gateways (R7) cost: CPU time per token of `STREAMS`
streams at full speed, with the mock engine. `make bench-scale ARGS=--costs`.
"""

import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks import client_process
from benchmarks.load import Load, Measured
from benchmarks.scale import fleet
from tests import mock_models
from tests.gateway_process import GatewayProcess
from tests.scale import routers

STREAMS = 64
_TOKENS = (128, 384)  # of an answer: what a request costs is part of its tokens' cost
SERVE = "serve"
REPLICA = "replica in Ray"
_ROUNDS = 5  # of all loads in turn
_LOAD_S = 6.0
_MOST = 1.15  # of a replica's CPU time per token, divided by that of `serve`


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Medians over the rounds, of `STREAMS` streams at full speed."""

    gateway_us: float  # CPU time per token
    router_us: float  # per token; 0 without a router
    tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """By deployment."""

    overhead: Mapping[str, Cost]  # R1
    several: Mapping[str, Cost]  # R7

    @property
    def ratio_to_serve(self) -> float:
        """R1: a replica's CPU time per token, divided by that of `serve`."""
        return self.overhead[REPLICA].gateway_us / self.overhead[SERVE].gateway_us


def run(say: Callable[[str], None]) -> Found:
    """In about eight minutes; `say` gets each result as soon as it is known."""
    overhead = _overhead(_LOAD_S)
    say(f"R1 {overhead}")
    several = _several(_LOAD_S)
    say(f"R7 {several}")
    return Found(overhead=overhead, several=several)


def table(found: Found) -> str:
    """In Markdown."""
    goal = f"at most {_MOST}{', missed' if found.ratio_to_serve > _MOST else ''}"
    return "\n".join(
        [
            f"A replica costs {found.ratio_to_serve:.2f} times what `serve` costs ({goal}).",
            "",
            *_rows(
                f"R1, {STREAMS} streams of {_TOKENS[0]} to {_TOKENS[1]} tokens at full speed",
                found.overhead,
            ),
            *_rows("R7, the same with several gateways on one machine", found.several),
        ]
    )


def document(found: Found) -> dict[str, Any]:
    return {
        "ratio_to_serve": found.ratio_to_serve,
        "at_most": _MOST,
        "streams": STREAMS,
        "tokens": _TOKENS,
        **asdict(found),
    }


def _rows(title: str, costs: Mapping[str, Cost]) -> list[str]:
    return [
        f"| {title} | CPU per token, us | router's, us | tokens/s |",
        "|---|--:|--:|--:|",
        *(
            f"| {name} | {each.gateway_us:.1f} "
            f"| {f'{each.router_us:.1f}' if each.router_us else ''} | {each.tokens_per_s:,.0f} |"
            for name, each in costs.items()
        ),
        "",
    ]


def _overhead(load_s: float) -> dict[str, Cost]:
    """A replica in Ray beside `openai-frontend serve`, with and without HAProxy, in turn.

    Without HAProxy, the load goes to the replica's own port: how many tokens come in one write, and
    so what they cost a gateway, depends on how fast the one that reads them is.
    """
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        gateways = running.enter_context(fleet.replicas(_below(folder, "ray"), count=1))
        [replica] = gateways.cluster.replicas()
        ray_proxy = gateways.cluster.haproxy()
        [alone] = running.enter_context(_started(_below(folder, "serve"), 1))
        router = running.enter_context(
            routers.running(routers.haproxy, _below(folder, "haproxy"), [alone.port] * 3)
        )
        loads = {
            SERVE: (alone.port, {"gateway": [alone.pid]}),
            REPLICA: (_own_port(replica), {"gateway": [replica.pid]}),
            "serve behind HAProxy": (
                router.port,
                {"gateway": [alone.pid], "router": [router.process.pid]},
            ),
            "replica in Ray, behind its HAProxy": (
                gateways.port,
                {"gateway": [replica.pid], "router": ray_proxy},
            ),
        }
        return _costs(loads, load_s)


def _own_port(replica: psutil.Process) -> int:
    """The one at which the gateway in a replica of Ray's listens."""
    listening = [each.laddr.port for each in replica.net_connections("tcp") if not each.raddr]
    [port] = [port for port in listening if _is_gateway(port)]
    return port


def _is_gateway(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health/live").status_code == 200
    except httpx.HTTPError:
        return False


def _several(load_s: float) -> dict[str, Cost]:
    """One, two and three gateways of one machine behind HAProxy."""
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        started = running.enter_context(_started(_below(folder, "gateways"), fleet.GATEWAYS))
        loads = {"1 gateway, no router": (started[0].port, {"gateway": [started[0].pid]})}
        for count in range(1, fleet.GATEWAYS + 1):
            used = started[:count]
            ports = [used[number % count].port for number in range(fleet.GATEWAYS)]
            below = _below(folder, f"haproxy{count}")
            router = running.enter_context(routers.running(routers.haproxy, below, ports))
            pids = {"gateway": [each.pid for each in used], "router": [router.process.pid]}
            loads[f"{count} gateway{'s' * (count > 1)}"] = (router.port, pids)
        return _costs(loads, load_s)


def _costs(loads: dict[str, tuple[int, dict[str, list[int]]]], load_s: float) -> dict[str, Cost]:
    measured: dict[str, list[Measured]] = {name: [] for name in loads}
    for _ in range(_ROUNDS):
        for name, (port, pids) in loads.items():
            load = Load(
                port=port,
                pids=pids,
                connections=STREAMS,
                tokens=_TOKENS,
                warm_up_s=1,
                measured_s=load_s,
            )
            measured[name].append(client_process.measure(load))
    return {name: _cost(each) for name, each in measured.items()}


def _cost(measured: list[Measured]) -> Cost:
    def median(of: Callable[[Measured], float]) -> float:
        return statistics.median(map(of, measured))

    return Cost(
        gateway_us=median(lambda each: each.cpu_s["gateway"] / each.tokens * 1e6),
        router_us=median(lambda each: each.cpu_s.get("router", 0.0) / each.tokens * 1e6),
        tokens_per_s=median(lambda each: each.tokens_per_s),
    )


def _below(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


@contextmanager
def _started(folder: Path, count: int) -> Iterator[list[GatewayProcess]]:
    mock_models.write_with_tokenizer(folder / "models", "mock")
    with ExitStack() as processes:
        running = [
            processes.enter_context(
                GatewayProcess(folder / "models", folder / f"{number}.log", "--behind-router")
            )
            for number in range(count)
        ]
        for each in running:
            each.wait_until_ready()
        yield running
