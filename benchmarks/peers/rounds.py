"""Loads in turn: A B C, A B C, each server paused while another one is measured."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from benchmarks.peers import processes
from benchmarks.peers.figures import figures
from benchmarks.peers.load import Load, Measured
from benchmarks.peers.servers import PeerServer
from benchmarks.server_process import ROOT

_MOST_CLIENT_SHARE = 0.80
_MOST_OTHERS_SHARE = 0.10
_MOST_WAITING = 0.25
_MOST_LATENESS = 0.10  # p99 of it, of TTFT's median
_CLIENT_S = 300.0
_TRIES = 3


class LoadFailed(Exception):
    """A load whose answers were not whole; the message says what was wrong."""


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

    def run(self, name: str, load: Load, number: int) -> list[Result]:
        """One load on all servers in their order. Raises LoadFailed."""
        return [self._result(server, name, load, number) for server in self.servers]

    def _result(self, server: PeerServer, name: str, load: Load, number: int) -> Result:
        with _others_paused(server, self.servers):
            measured = self._undisturbed(server, load)
        result = Result(
            flags=self.flags,
            server=server.name,
            load=name,
            number=number,
            figures=figures(measured),
            client_share=measured.client_share,
            doubts=tuple(doubts(measured, self.cores)),
            failure=failure(measured),
        )
        self.say(_line(result))
        return result

    def _undisturbed(self, server: PeerServer, load: Load) -> Measured:
        """Again where other programs disturbed it; what it measured has no say in that."""
        for _ in range(_TRIES):
            measured = _measure(server, replace(load, port=server.port, pids=server.pids()))
            if not any(doubts(measured, self.cores)):
                break
        return measured


def failure(measured: Measured) -> str | None:
    """Why a measurement is none: the client was the limit."""
    if measured.client_share > _MOST_CLIENT_SHARE:
        return f"the client took {measured.client_share:.0%} of a core"
    return None


def doubts(measured: Measured, cores: int) -> Iterator[str]:
    """What makes a measurement's times doubtful."""
    share = measured.others_cpu_s / measured.seconds / cores
    if share > _MOST_OTHERS_SHARE:
        yield f"others took {share:.0%} of the machine"
    if measured.client_wait_share > _MOST_WAITING:
        yield f"the client waited for a core for {measured.client_wait_share:.0%} of the time"
    late, ttft = measured.lateness, measured.ttft
    if late is not None and ttft is not None and late.p99 > _MOST_LATENESS * ttft.p50:
        yield f"the client sent late: p99 {late.p99:.1f} ms, which is in all times"


@contextmanager
def _others_paused(server: PeerServer, servers: Sequence[PeerServer]) -> Iterator[None]:
    """An engine that waits takes 2 % of a core; paused it takes none of the measured one's."""
    others = [process for each in servers if each is not server for process in each.processes()]
    with processes.paused(others):
        yield


def _measure(server: PeerServer, load: Load) -> Measured:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers.client"],
        input=load.dump(),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=_CLIENT_S,
        check=False,
    )
    if done.returncode:
        raise LoadFailed(f"{server.name}: {done.stderr[-3000:]}\n{server.log()}")
    return Measured.parse(done.stdout)


def _line(result: Result) -> str:
    names = ("frontend_us", "tokens_per_s", "ttft_p50", "text_frontend_us", "texts_per_s")
    values = [f"{name} {result.figures[name]:,.1f}" for name in names if name in result.figures]
    notes = [*result.doubts, *([f"FAILED: {result.failure}"] if result.failure else [])]
    share = f"client {result.client_share:.0%}"
    title = f"{result.flags}, {result.load}, round {result.number}, {result.server:9}"
    return ", ".join([title, *values, share, *notes])
