"""What a client is to do and what it found: the two messages between benchmark and client."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.request import MODEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests of one kind.

    A closed loop: each connection sends its next request when it has its answer. With `rate_per_s`
    an open loop: requests leave on a fixed schedule, whatever the answers do.
    """

    port: int
    server_pid: int
    connections: int  # of an open loop: those that are there before it begins
    kind: str = "chat"  # of `request`
    model: str = MODEL
    stream: bool = True
    prompt_bytes: int = 0  # 0: the kind's own short prompt
    # Lengths of the answers, drawn evenly: answers of one length would all end and start together
    tokens: tuple[int, int] = (128, 384)
    exact: bool = True  # an answer with another number of tokens fails the run
    refusals: bool = False  # a 503 is one of the answers; else it fails the run
    rate_per_s: float = 0.0
    idle: int = 0  # streams beside it that wait for their first token
    gaps: bool = False  # record the time between one stream's tokens
    aligned: bool = False  # measure from one answer's end to another's: for few, long answers
    drain: bool = True  # the last answers run to their end; else the client hangs up
    warm_up_s: float
    measured_s: float
    probes_per_s: float = 0.0  # /health/live beside the load, on a fixed schedule; 0: none
    core: int | None = None
    seed: int = 1

    def dump(self) -> str:
        """As the client reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> "Load":
        """What `dump` wrote."""
        values: dict[str, Any] = json.loads(text)
        return cls(**{**values, "tokens": tuple(values["tokens"])})


@dataclass(slots=True, kw_only=True)
class Measured:
    """What happened in the measured time."""

    seconds: float = 0.0
    server_cpu_s: float = 0.0
    server_wait_s: float = 0.0  # the server could have run and had no core
    client_cpu_s: float = 0.0
    chunks: int = 0  # frames with text
    tokens: int = 0  # in these chunks, by their known text
    responses: int = 0
    all_chunks: int = 0  # warm-up and last answers too
    all_responses: int = 0
    ttft_s: list[float] = field(default_factory=list)  # to the first text, see `latency_s`
    # To the last byte. Both from the request's sending, in an open loop from its intended time
    latency_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)  # open loop: intended time to sending
    gap_s: list[float] = field(default_factory=list)  # between two arrivals of text on one stream
    probe_s: list[float] = field(default_factory=list)  # from the intended time of sending
    refusal_s: list[float] = field(default_factory=list)  # from a request's sending to its 503

    def dump(self) -> str:
        """As the benchmark reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> "Measured":
        """What `dump` wrote."""
        return cls(**json.loads(text))

    @property
    def chunks_per_s(self) -> float:
        """All streams together, by the clock."""
        return self.chunks / self.seconds

    @property
    def tokens_per_s(self) -> float:
        """All streams together, by the clock."""
        return self.tokens / self.seconds

    @property
    def responses_per_s(self) -> float:
        """All connections together, by the clock."""
        return self.responses / self.seconds

    @property
    def chunks_per_core_s(self) -> float:
        """The same without the time in which other processes held the server's core."""
        return self.chunks / (self.seconds - self.server_wait_s)

    @property
    def tokens_per_chunk(self) -> float:
        """1 where none were merged."""
        return self.tokens / self.chunks

    @property
    def cpu_us_per_chunk(self) -> float:
        """CPU time of the whole server process."""
        return self.server_cpu_s / self.chunks * 1e6

    @property
    def cpu_us_per_token(self) -> float:
        """CPU time of the whole server process."""
        return self.server_cpu_s / self.tokens * 1e6

    @property
    def cpu_us_per_response(self) -> float:
        """CPU time of the whole server process."""
        return self.server_cpu_s / self.responses * 1e6

    @property
    def client_share(self) -> float:
        """Of a core; near 1 the client would be the limit."""
        return self.client_cpu_s / self.seconds

    @property
    def wait_share(self) -> float:
        """Of the measured time, lost by the server to other processes."""
        return self.server_wait_s / self.seconds


def difference(before: Measured, after: Measured) -> Measured:
    """What happened between two snapshots; the lists hold that already."""
    values: dict[str, Any] = asdict(after)
    for name, value in asdict(before).items():
        if not isinstance(value, list):
            values[name] -= value
    return Measured(**values)
