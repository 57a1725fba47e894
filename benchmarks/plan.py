"""How long and how often everything is measured. Data only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run."""

    rounds: int
    rounds_alone: int  # of these, how many measure too what needs a process of its own
    warm_up_s: float
    stream_s: float  # each load of streams
    chat_s: float  # each load of short chats
    liveness_s: float
    canary_s: float
    idle_streams: int
    tokenizations: int


FULL = Plan(
    rounds=5,
    rounds_alone=5,
    warm_up_s=1,
    stream_s=5,
    chat_s=4,
    liveness_s=10,
    canary_s=3,
    idle_streams=500,
    tokenizations=2000,
)
QUICK = Plan(
    rounds=3,
    rounds_alone=1,
    warm_up_s=0.3,
    stream_s=1,
    chat_s=0.8,
    liveness_s=1.5,
    canary_s=0.7,
    idle_streams=200,
    tokenizations=300,
)
