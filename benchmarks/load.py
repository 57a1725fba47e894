"""What a client is to do and what it found: the two messages between benchmark and client."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.request import EMBEDDING_INPUTS, MODEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests of one kind.

    A closed loop: each connection sends its next request when it has its answer. With `rate_per_s`
    an open loop: requests leave on a fixed schedule, whatever the answers do.
    """

    port: int
    pids: dict[str, list[int]]  # the server's processes by role; the first one listens
    connections: int  # of an open loop: those that are there before it begins
    kind: str = "chat"  # of `request`
    model: str = MODEL
    stream: bool = True
    prompt_bytes: int = 0  # 0: the kind's own short prompt
    # Lengths of the answers, drawn evenly: answers of one length would all end and start together
    tokens: tuple[int, int] = (128, 384)
    inputs: int = EMBEDDING_INPUTS  # texts in one embeddings request
    reconnect: bool = False  # a new connection for each request; else they are kept alive
    distinct: bool = False  # each prompt is different: a prefix cache would know equal ones
    first_number: int = 1  # of those prompts
    exact: bool = True  # an answer with another number of tokens fails the run
    refusals: bool = False  # a 503 is one of the answers; else it fails the run
    rate_per_s: float = 0.0
    # A closed loop's connections begin one after the other within this time: answers of one length
    # would all end and start together
    spread_s: float = 0.0
    idle: int = 0  # streams beside it that wait for their first token
    gaps: bool = False  # record the time between one stream's tokens
    aligned: bool = False  # measure from one answer's end to another's: for few, long answers
    drain: bool = True  # the last answers run to their end; else the client hangs up
    warm_up_s: float
    measured_s: float
    least_responses: int = 1  # the measured time is extended until so many end; needs `drain`
    probes_per_s: float = 0.0  # /health/live beside the load, on a fixed schedule; 0: none
    core: int | None = None
    seed: int = 1

    def dump(self) -> str:
        """As the client reads it."""
        return json.dumps(asdict(self))

    @property
    def server_pid(self) -> int:
        """The process that listens."""
        return next(iter(self.pids.values()))[0]

    @classmethod
    def parse(cls, text: str) -> "Load":
        """What `dump` wrote."""
        values: dict[str, Any] = json.loads(text)
        return cls(**{**values, "tokens": tuple(values["tokens"])})


@dataclass(slots=True, kw_only=True)
class Measured:
    """What happened in the measured time.

    All times but gaps and probes belong to requests that were sent in it, whenever they ended.
    """

    measuring: bool = False  # the measured time runs
    seconds: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)  # of the server, by role
    server_wait_s: float = 0.0  # the server could have run and had no core
    client_cpu_s: float = 0.0
    client_wait_s: float = 0.0
    machine_cpu_s: float = 0.0  # of all processes
    chunks: int = 0  # frames with text
    tokens: float = 0.0  # a part of an answer counts by its part of the chunks
    responses: int = 0  # that ended
    texts: int = 0  # that were embedded
    all_chunks: int = 0  # warm-up and last answers too
    all_responses: int = 0
    ttft_s: list[float] = field(default_factory=list)  # to the first text, see `latency_s`
    # To the last byte. Both from the request's sending, in an open loop from its intended time
    latency_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)  # open loop: intended time to sending
    gap_s: list[float] = field(default_factory=list)  # between two chunks of one stream, as read
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
    def server_cpu_s(self) -> float:
        """Of all the server's processes."""
        return sum(self.cpu_s.values())

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

    @property
    def client_wait_share(self) -> float:
        """Of the measured time, in which answers lay unread."""
        return self.client_wait_s / self.seconds

    @property
    def others_cpu_s(self) -> float:
        """CPU time that neither server nor client took."""
        return max(self.machine_cpu_s - self.client_cpu_s - self.server_cpu_s, 0.0)
