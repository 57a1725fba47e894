"""One round: every figure once."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import (
    aiperf,
    client_process,
    idle_memory,
    kserve,
    mock_repository,
    scenario,
    server_process,
)
from benchmarks.client_process import MOST_CLIENT_SHARE, ClientFailed, output
from benchmarks.load import Load, Measured
from benchmarks.plan import Plan
from benchmarks.process_stat import Cores
from benchmarks.refusal import refusal
from benchmarks.scenario import LONG_PROMPT, MOST_STREAMS, SCENARIOS, Scenario
from benchmarks.server_process import ServerProcess

_LONG_TOKENIZATION_S = 0.5  # how long those of long prompts are measured, about
_TOKENIZATION_BYTES_PER_S = 3_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Measures on one set of repositories."""

    plan: Plan
    cores: Cores
    repository: Path
    empty_repository: Path
    tokenizer: Path
    c_floor: Path | None  # the compiled program
    say: Callable[[str], None] = field(repr=False)

    @classmethod
    def prepare(
        cls, folder: Path, plan: Plan, *, c_floor: Path | None, say: Callable[[str], None]
    ) -> "Bench":
        """With repositories of its own below a folder of the caller's."""
        empty = folder / "empty"
        empty.mkdir()
        return cls(
            plan=plan,
            cores=Cores.available(),
            repository=mock_repository.write(folder / "models"),
            empty_repository=empty,
            tokenizer=folder / "tokenizer",
            c_floor=c_floor,
            say=say,
        )

    def gateway(self) -> ServerProcess:
        """The server that all rounds load."""
        self.say("start of the gateway")
        return server_process.gateway(self.repository, self.cores.server)

    def refused(self, gateway: ServerProcess) -> dict[str, str]:
        """The optional scenarios that this server refuses, each with its reason."""
        reasons = {
            each.name: refusal(gateway.port, each.options) for each in SCENARIOS if each.optional
        }
        return {name: reason for name, reason in reasons.items() if reason is not None}

    def canary(self) -> Measured:
        """The floor server under the same load."""
        self.say("floor")
        with server_process.floor(self.cores.server) as floor:
            return self._floor_load(floor)

    def round(self, gateway: ServerProcess, *, alone: bool, skipped: Mapping[str, str]) -> "Round":
        """The figures once; `alone` adds those that need a process of their own."""
        done = Round()
        for each in SCENARIOS:
            if each.name not in skipped:
                done.add(each, self.scenario(gateway, each))
        self._open_loop(done, gateway)
        self._paced(done, gateway)
        done.add(scenario.LIVENESS, self.scenario(gateway, scenario.LIVENESS))
        self._c_floor(done)
        if alone:
            self._tokenization(done)
            self._without_http(done)
            self._kserve(done)
            self._memory(done)
            self._start_up(done)
        return done

    def scenario(self, server: ServerProcess, chosen: Scenario, **options: Any) -> Measured:
        """Runs one scenario; fails where the client would have been the limit."""
        self.say(chosen.title)
        seconds = {"measured_s": self.plan.seconds(chosen.length)}
        measured = self.load(server, **{**seconds, **chosen.options, **options})
        if measured.client_share > MOST_CLIENT_SHARE:
            raise ClientFailed(
                f"{chosen.title}: the client took {measured.client_share:.0%} of its core, and "
                f"above {MOST_CLIENT_SHARE:.0%} it could be the limit"
            )
        return measured

    def load(self, server: ServerProcess, **options: Any) -> Measured:
        """Runs one load in a client process."""
        return client_process.measure(self._load(server, **options))

    def witness(self, server: ServerProcess, chosen: Scenario, **options: Any) -> dict[str, float]:
        """Drives a scenario with aiperf. Raises NoWitness."""
        self.say(f"aiperf: {chosen.title}")
        load = self._load(server, **{**chosen.options, **options})
        return aiperf.measure(load, self.tokenizer, chosen.metrics)

    def _load(self, server: ServerProcess, **options: Any) -> Load:
        defaults = {"warm_up_s": self.plan.warm_up_s, "measured_s": self.plan.stream_s}
        return Load(
            port=server.port,
            pids={"server": [server.pid]},
            core=self.cores.client,
            **{**defaults, **options},
        )

    def _floor_load(self, floor: ServerProcess) -> Measured:
        return self.load(floor, connections=MOST_STREAMS, measured_s=self.plan.canary_s)

    def _open_loop(self, done: "Round", gateway: ServerProcess) -> None:
        """At a share of what the closed loop reached right before."""
        closed = self.scenario(gateway, scenario.CLOSED_LOOP)
        done.add(scenario.CLOSED_LOOP, closed)
        rate_per_s = scenario.OPEN_SHARE * closed.responses_per_s
        opened = self.scenario(gateway, scenario.OPEN_LOOP, rate_per_s=rate_per_s)
        done.add(scenario.OPEN_LOOP, opened)

    def _paced(self, done: "Round", gateway: ServerProcess) -> None:
        done.add(scenario.PACED, self.scenario(gateway, scenario.PACED))
        # Longer than what it stands beside, from begin to end
        long_s = self.plan.warm_up_s + self.plan.liveness_s + 1
        with ThreadPoolExecutor() as pool:
            options = {**LONG_PROMPT.options, "warm_up_s": 0, "measured_s": long_s}
            prompts = pool.submit(self.load, gateway, **options)
            done.add(scenario.PACED_BESIDE_LONG, self.scenario(gateway, scenario.PACED_BESIDE_LONG))
            prompts.result()

    def _c_floor(self, done: "Round") -> None:
        if self.c_floor is None:
            return
        self.say("floor in C")
        with server_process.c_floor(self.c_floor, self.cores.server) as floor:
            measured = self._floor_load(floor)
        done.figures["c_floor_us_per_chunk"] = measured.cpu_us_per_chunk
        done.figures["c_floor_chunks_per_s"] = measured.chunks_per_s

    def _tokenization(self, done: "Round") -> None:
        """Of the chat, and of the prompts that take long."""
        self._tokenization_of(done, "chat", self.tokenizer, 0, self.plan.tokenizations)
        done.figures["cpu_us_besides_chat"] = (
            done.figures["cpu_us_per_request_chat"] - done.figures["tokenization_us_chat"]
        )
        for each in SCENARIOS:
            size = each.options.get("prompt_bytes", 0)
            if size > 1000:
                times = max(int(_LONG_TOKENIZATION_S * _TOKENIZATION_BYTES_PER_S / size), 2)
                self._tokenization_of(done, each.name, mock_repository.LONG_TOKENIZER, size, times)

    def _tokenization_of(
        self, done: "Round", name: str, tokenizer: Path, size: int, times: int
    ) -> None:
        self.say(f"tokenization: {name}")
        arguments = [str(tokenizer), str(size), str(times), self._core()]
        spent_us = float(output(["-m", "benchmarks.tokenization", *arguments]))
        done.figures[f"tokenization_us_{name}"] = spent_us

    def _without_http(self, done: "Round") -> None:
        self.say("core without HTTP")
        seconds = [str(self.plan.warm_up_s), str(self.plan.stream_s)]
        arguments = [str(self.repository), str(MOST_STREAMS), *seconds, self._core()]
        printed = output(["-m", "benchmarks.core_loop", *arguments])
        done.figures["core_us_per_chunk"] = float(printed.split()[-1])

    def _kserve(self, done: "Round") -> None:
        self.say("KServe's protocol over HTTP and gRPC")
        for figures in kserve.rounds(self.cores.server, self.plan.kserve, 1):
            done.figures |= figures

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

    def add(self, scenario: Scenario, measured: Measured) -> None:
        """Add the figures of a scenario; the single times are not kept."""
        for metric in scenario.metrics:
            self.figures[f"{metric.name}_{scenario.name}"] = metric.of(measured)
        self.loads[scenario.name] = replace(
            measured, ttft_s=[], latency_s=[], late_s=[], gap_s=[], probe_s=[], refusal_s=[]
        )

    def add_canary(self, before: Measured, after: Measured) -> None:
        """The floor, from both sides of the round."""
        cpu = (before.cpu_us_per_chunk, after.cpu_us_per_chunk)
        rate = (before.chunks_per_s, after.chunks_per_s)
        self.figures |= {"floor_us_per_chunk": sum(cpu) / 2, "floor_chunks_per_s": sum(rate) / 2}
