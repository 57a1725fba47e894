"""What the client is to do and what it found: the two messages between command and client."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

CHAT = "chat"
EMBEDDINGS = "embeddings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A closed loop of kept-alive connections, or, with a rate, an open one."""

    port: int
    pids: dict[str, list[int]]  # by role, see processes.py
    kind: str = CHAT
    model: str
    connections: int  # of the open loop: at most
    rate_per_s: float = 0.0  # arrivals on a fixed schedule; 0: a closed loop
    tokens: int = 200  # of each answer
    batch: int = 1  # texts of one embeddings request
    encoding: str = "float"
    warm_up_s: float
    measured_s: float

    def dump(self) -> str:
        """As the client reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> "Load":
        """What `dump` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Distribution:
    """Times of one kind, in milliseconds."""

    count: int
    p50: float
    p90: float
    p99: float
    most: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Distribution | None":
        """None where there is none."""
        if not seconds:
            return None
        ordered = sorted(seconds)
        p50, p90, p99 = (percentile(ordered, share) * 1e3 for share in (0.5, 0.9, 0.99))
        return cls(len(ordered), p50, p90, p99, ordered[-1] * 1e3)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The least value that at least this share of all values does not exceed."""
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What happened in the measured time."""

    seconds: float
    cpu_s: dict[str, float]  # of the server, by role
    client_cpu_s: float
    client_wait_s: float = 0.0  # it could have run and had no core
    busy_cpu_s: float  # of the whole machine
    tokens: float  # as the usage says; a part of an answer counts by its part of the chunks
    chunks: int  # frames with content
    responses: int  # that ended within
    texts: int = 0
    ttft: Distribution | None = None  # to the first content that is not empty
    gap: Distribution | None = None  # between two chunks of one stream, as the client read them
    latency: Distribution | None = None  # to the end of the answer
    lateness: Distribution | None = None  # of the open loop's sending: the client's own fault

    def dump(self) -> str:
        """As the command reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> "Measured":
        """What `dump` wrote."""
        values: dict[str, Any] = json.loads(text)
        for name in ("ttft", "gap", "latency", "lateness"):
            if values[name] is not None:
                values[name] = Distribution(**values[name])
        return cls(**values)

    @property
    def client_share(self) -> float:
        """Of one core; near 1 the client would be the limit."""
        return self.client_cpu_s / self.seconds

    @property
    def client_wait_share(self) -> float:
        """Of the measured time, in which answers lay unread."""
        return self.client_wait_s / self.seconds

    @property
    def others_cpu_s(self) -> float:
        """CPU time that neither server nor client took: other servers, other programs."""
        return max(self.busy_cpu_s - self.client_cpu_s - sum(self.cpu_s.values()), 0.0)


@dataclass(slots=True)
class Seen:
    """What a running client collects within its window."""

    open: bool = False
    tokens: float = 0.0
    chunks: int = 0
    responses: int = 0
    texts: int = 0
    ttft_s: list[float] = field(default_factory=list)
    gap_s: list[float] = field(default_factory=list)
    latency_s: list[float] = field(default_factory=list)
    lateness_s: list[float] = field(default_factory=list)
