"""One round: every figure once."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import idle_memory, server_process
from benchmarks.figures import MOST_STREAMS, STREAMS
from benchmarks.load import Load, Measured
from benchmarks.plan import Plan
from benchmarks.process_stat import Cores
from benchmarks.server_process import ServerProcess
from benchmarks.summary import percentile

SHORT_CHATS: dict[str, Any] = {"connections": 8, "tokens": (1, 1)}
_PROBES_PER_S = 200.0


class ClientFailed(Exception):
    """A client or peer process that failed, and with it the run; the message is what it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Measures on one set of repositories."""

    plan: Plan
    cores: Cores
    repository: Path
    empty_repository: Path
    tokenizer: Path
    say: Callable[[str], None] = field(repr=False)

    def gateway(self) -> ServerProcess:
        """The server that all rounds load."""
        self.say("start of the gateway")
        return server_process.gateway(self.repository, self.cores.server)

    def canary(self) -> Measured:
        """The floor server under the same load."""
        self.say("floor")
        with server_process.floor(self.cores.server) as floor:
            return self.load(floor, connections=MOST_STREAMS, measured_s=self.plan.canary_s)

    def round(self, gateway: ServerProcess, *, alone: bool) -> "Round":
        """The figures once; `alone` adds those that need a process of their own."""
        done = Round()
        for streams in STREAMS:
            self.say(f"streams: {streams}")
            done.add_streams(streams, self.load(gateway, connections=streams))
        self._short_chats(done, gateway)
        self._liveness(done, gateway)
        if alone:
            self._tokenization(done)
            self._without_http(done)
            self._memory(done)
            self._start_up(done)
        return done

    def load(self, server: ServerProcess, **options: Any) -> Measured:
        """Runs one load in a client process."""
        defaults = {"warm_up_s": self.plan.warm_up_s, "measured_s": self.plan.stream_s}
        load = Load(
            port=server.port,
            server_pid=server.pid,
            core=self.cores.client,
            **{**defaults, **options},
        )
        return Measured.parse(_output(["-m", "benchmarks.client"], stdin=load.dump()))

    def _short_chats(self, done: "Round", gateway: ServerProcess) -> None:
        self.say("short chats")
        options = {**SHORT_CHATS, "measured_s": self.plan.chat_s}
        done.add_chats(
            whole=self.load(gateway, stream=False, **options),
            streamed=self.load(gateway, stream=True, **options),
        )

    def _liveness(self, done: "Round", gateway: ServerProcess) -> None:
        self.say("/health/live under load")
        measured = self.load(
            gateway,
            connections=MOST_STREAMS,
            measured_s=self.plan.liveness_s,
            probes_per_s=_PROBES_PER_S,
        )
        done.loads["liveness"] = measured
        done.figures["live_p50_ms"] = percentile(measured.probe_s, 50) * 1e3
        done.figures["live_p999_ms"] = percentile(measured.probe_s, 99.9) * 1e3

    def _tokenization(self, done: "Round") -> None:
        self.say("tokenization")
        arguments = [str(self.tokenizer), str(self.plan.tokenizations), self._core()]
        done.add_tokenization(float(_output(["-m", "benchmarks.tokenization", *arguments])))

    def _without_http(self, done: "Round") -> None:
        self.say("core without HTTP")
        seconds = [str(self.plan.warm_up_s), str(self.plan.stream_s)]
        arguments = [str(self.repository), str(MOST_STREAMS), *seconds, self._core()]
        output = _output(["-m", "benchmarks.core_loop", *arguments])
        done.figures["core_us_per_chunk"] = float(output.split()[-1])

    def _memory(self, done: "Round") -> None:
        self.say("idle streams")
        with server_process.gateway(self.repository, self.cores.server) as gateway:
            per_stream = idle_memory.bytes_per_stream(gateway, streams=self.plan.idle_streams)
            done.figures["idle_stream_kb"] = per_stream / 1e3

    def _start_up(self, done: "Round") -> None:
        self.say("start-up")
        with server_process.gateway(self.empty_repository, self.cores.server) as gateway:
            done.figures["start_up_s"] = gateway.start_up_s
            done.figures["start_up_cpu_s"] = gateway.start_up_cpu_s

    def _core(self) -> str:
        return str(-1 if self.cores.server is None else self.cores.server)


@dataclass(slots=True)
class Round:
    """The figures of one round, and the loads that they are from."""

    figures: dict[str, float] = field(default_factory=dict)
    loads: dict[str, Measured] = field(default_factory=dict)

    def add_streams(self, streams: int, measured: Measured) -> None:
        """A closed loop of streams."""
        self.loads[f"streams: {streams}"] = measured
        self.figures |= {
            f"cpu_us_per_chunk_{streams}": measured.cpu_us_per_chunk,
            f"chunks_per_s_{streams}": measured.chunks_per_s,
            f"ttft_p50_ms_{streams}": percentile(measured.ttft_s, 50) * 1e3,
            f"ttft_p99_ms_{streams}": percentile(measured.ttft_s, 99) * 1e3,
        }
        if streams == MOST_STREAMS:
            self.figures[f"chunks_per_core_s_{streams}"] = measured.chunks_per_core_s
            self.figures["tokens_per_chunk"] = measured.tokens / measured.response_chunks

    def add_chats(self, *, whole: Measured, streamed: Measured) -> None:
        """Closed loops of chats with one token."""
        self.loads |= {"whole chats": whole, "streamed chats": streamed}
        self.figures |= {
            "cpu_us_per_chat": whole.cpu_us_per_response,
            "cpu_us_per_streamed_chat": streamed.cpu_us_per_response,
        }

    def add_tokenization(self, tokenization_us: float) -> None:
        """What of these chats is no work of the gateway's."""
        besides = self.figures["cpu_us_per_chat"] - tokenization_us
        self.figures |= {"tokenization_us": tokenization_us, "cpu_us_per_chat_besides": besides}

    def add_canary(self, before: Measured, after: Measured) -> None:
        """The floor, from both sides of the round."""
        cpu = (before.cpu_us_per_chunk, after.cpu_us_per_chunk)
        rate = (before.chunks_per_s, after.chunks_per_s)
        self.figures |= {"floor_us_per_chunk": sum(cpu) / 2, "floor_chunks_per_s": sum(rate) / 2}


def _output(arguments: Sequence[str], stdin: str = "") -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=server_process.ROOT, input=stdin, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ClientFailed(f"{' '.join(arguments)}: {done.stderr.strip()[-2000:]}")
    return done.stdout
