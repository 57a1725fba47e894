"""Loads in turn: A B C, A B C, each server paused while another one is measured."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks import aiperf, client_process
from benchmarks.aiperf import NoWitness
from benchmarks.client_process import MOST_CLIENT_SHARE, ClientFailed
from benchmarks.load import Load, Measured
from benchmarks.peers import processes
from benchmarks.peers.servers import PeerServer
from benchmarks.scenario import Scenario
from benchmarks.summary import percentile

_MOST_OTHERS_SHARE = 0.10
_MOST_WAITING = 0.25
_MOST_LATENESS = 0.10  # p99 of it, of TTFT's median
_TRIES = 3
_NUMBERS = 1_000_000  # more than a load has requests
_loads = count(1)


@dataclass(frozen=True, slots=True)
class Result:
    """One load on one server, once."""

    flags: str
    server: str
    load: str
    number: int  # of the round
    figures: dict[str, float]
    client_share: float
    doubts: tuple[str, ...]  # what disturbed it; its figures count all the same
    failure: str | None = None  # why its figures count for nothing


@dataclass(frozen=True, slots=True)
class Rounds:
    """What is measured on which servers; `say` hears of each result."""

    flags: str
    servers: Sequence[PeerServer]
    cores: int
    say: Callable[[str], None]

    def run(self, scenario: Scenario, number: int) -> list[Result]:
        """One load on all servers in their order. Raises ClientFailed."""
        return [self._result(server, scenario, number) for server in self.servers]

    def warm_up(self, scenario: Scenario) -> None:
        """Put a load on each server without keeping its figures: processes that only some requests
        need start with them, and a measurement counts those that exist when it begins.
        """
        for server in self.servers:
            with _others_paused(server, self.servers):
                _measure(server, scenario)

    def witness(self, scenario: Scenario, tokenizer: Path) -> Iterator[Result]:
        """The same load on each server, driven once with aiperf."""
        for server in self.servers:
            figures, reasons = {}, []
            with _others_paused(server, self.servers):
                try:
                    load = _load(server, scenario.options)
                    figures = aiperf.measure(load, tokenizer, scenario.metrics)
                except NoWitness as error:
                    reasons.append(str(error))
            title = f"{scenario.title}, by aiperf"
            result = Result(self.flags, server.name, title, 1, figures, 0.0, tuple(reasons))
            self.say(_line(result))
            yield result

    def _result(self, server: PeerServer, scenario: Scenario, number: int) -> Result:
        with _others_paused(server, self.servers):
            measured = self._undisturbed(server, scenario)
        result = Result(
            flags=self.flags,
            server=server.name,
            load=scenario.title,
            number=number,
            figures={each.name: each.of(measured) for each in scenario.metrics},
            client_share=measured.client_share,
            doubts=tuple(doubts(measured, self.cores)),
            failure=failure(measured),
        )
        self.say(_line(result))
        return result

    def _undisturbed(self, server: PeerServer, scenario: Scenario) -> Measured:
        """Again where other programs disturbed it; what it measured has no say in that."""
        for _ in range(_TRIES):
            measured = _measure(server, scenario)
            if not any(doubts(measured, self.cores)):
                break
        return measured


def failure(measured: Measured) -> str | None:
    """Why a measurement is none: the client was the limit."""
    if measured.client_share > MOST_CLIENT_SHARE:
        return f"the client took {measured.client_share:.0%} of a core"
    return None


def doubts(measured: Measured, cores: int) -> Iterator[str]:
    """What makes a measurement's times doubtful."""
    share = measured.others_cpu_s / measured.seconds / cores
    if share > _MOST_OTHERS_SHARE:
        yield f"others took {share:.0%} of the machine"
    if measured.client_wait_share > _MOST_WAITING:
        yield f"the client waited for a core for {measured.client_wait_share:.0%} of the time"
    if measured.late_s:
        late_s = percentile(measured.late_s, 99)
        if late_s > _MOST_LATENESS * percentile(measured.ttft_s, 50):
            yield f"the client sent late: p99 {late_s * 1e3:.1f} ms, which is in all times"


@contextmanager
def _others_paused(server: PeerServer, servers: Sequence[PeerServer]) -> Iterator[None]:
    """An engine that waits takes 2 % of a core; paused it takes none of the measured one's."""
    others = [process for each in servers if each is not server for process in each.processes()]
    with processes.paused(others):
        yield


def _load(server: PeerServer, options: Mapping[str, Any]) -> Load:
    """With images that no earlier load has sent: they would be known."""
    first = next(_loads) * _NUMBERS if options["kind"].startswith("image_") else 1
    return Load(port=server.port, pids=server.pids(), first_number=first, **options)


def _measure(server: PeerServer, scenario: Scenario) -> Measured:
    load = _load(server, scenario.options)
    try:
        if scenario.beside is None:
            measured = client_process.measure(load)
        else:
            measured = _measure_beside(load, _load(server, scenario.beside))
    except ClientFailed as error:
        raise ClientFailed(f"{server.name}: {error}\n{server.log()}") from error
    if not measured.latency_s:
        raise ClientFailed(f"{server.name}: no request was sent in {load.measured_s:g} s")
    return measured


def _measure_beside(load: Load, other: Load) -> Measured:
    """The first load's figures; the client of the other one does not count as another program."""
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(client_process.measure, other)
        measured = client_process.measure(load)
        measured.machine_cpu_s -= beside.result().client_cpu_s
    return measured


def _line(result: Result) -> str:
    streamed = ("frontend_us", "tokens_per_s", "ttft_p50_ms", "gap_p99_ms", "live_p999_ms")
    whole = ("request_frontend_us", "requests_per_s", "text_frontend_us", "texts_per_s")
    values = [
        f"{name} {result.figures[name]:,.1f}"
        for name in (*streamed, *whole)
        if name in result.figures
    ]
    notes = [*result.doubts, *([f"FAILED: {result.failure}"] if result.failure else [])]
    share = f"client {result.client_share:.0%}"
    title = f"{result.flags}, {result.load}, round {result.number}, {result.server:9}"
    return ", ".join([title, *values, share, *notes])
