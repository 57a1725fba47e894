"""How long and how often everything is measured. Data only."""

from dataclasses import dataclass

from benchmarks.kserve import Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run."""

    rounds: int
    rounds_alone: int  # of these, how many measure too what needs a process of its own
    warm_up_s: float
    stream_s: float  # each load of streams
    request_s: float  # each load of answers with one token
    liveness_s: float
    canary_s: float
    idle_streams: int
    tokenizations: int  # of the short chat
    kserve: Amount

    def seconds(self, length: str) -> float:
        """What a scenario's length comes to."""
        return {
            "stream": self.stream_s,
            "request": self.request_s,
            "liveness": self.liveness_s,
        }[length]


FULL = Plan(
    rounds=5,
    rounds_alone=3,
    warm_up_s=0.5,
    stream_s=3,
    request_s=2,
    liveness_s=6,
    canary_s=2,
    idle_streams=500,
    tokenizations=2000,
    kserve=Amount(),
)
QUICK = Plan(
    rounds=1,
    rounds_alone=1,
    warm_up_s=0.2,
    stream_s=0.6,
    request_s=0.5,
    liveness_s=1.5,
    canary_s=0.6,
    idle_streams=200,
    tokenizations=300,
    kserve=Amount(requests=20, tokens=50),
)
