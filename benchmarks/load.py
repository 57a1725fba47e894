"""What a client is to do and what it found: the two messages between benchmark and client."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A closed loop: each connection sends its next request when it has its answer."""

    port: int
    server_pid: int
    connections: int
    stream: bool = True
    # Lengths of the answers, drawn evenly: answers of one length would all end and start together
    tokens: tuple[int, int] = (128, 384)
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
    chunks: int = 0  # frames with a token
    responses: int = 0
    all_chunks: int = 0  # warm-up and last answers too
    all_responses: int = 0
    tokens: int = 0  # of these responses, as they were asked for
    response_chunks: int = 0  # of these responses
    ttft_s: list[float] = field(default_factory=list)  # request sent to first content
    probe_s: list[float] = field(default_factory=list)  # from the intended time of sending

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
    def chunks_per_core_s(self) -> float:
        """The same without the time in which other processes held the server's core."""
        return self.chunks / (self.seconds - self.server_wait_s)

    @property
    def cpu_us_per_chunk(self) -> float:
        """CPU time of the whole server process."""
        return self.server_cpu_s / self.chunks * 1e6

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
