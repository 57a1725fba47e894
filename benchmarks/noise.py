"""What makes a round doubtful: the machine moved, or the client's schedule did. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.load import Measured
from benchmarks.measurement import Round
from benchmarks.scenario import STREAMS
from benchmarks.summary import moved

_MOST_MOVEMENT = 0.10
_MOST_WAITING = 0.10
_MOST_LATE_MS = 1.0
# Elsewhere it is the server's own threads, at long prompts, that its main thread waits for
_LOADS_OF_ONE_THREAD = {each.name: each.title for each in STREAMS}


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a round may be wrong."""

    text: str
    clock_only: bool  # rates and times by the clock; CPU time still holds

    def __str__(self) -> str:
        return self.text


def doubts(before: Measured, done: Round, after: Measured) -> list[Doubt]:
    """One for each reason; none where the round is good."""
    cpu = moved(before.cpu_us_per_chunk, after.cpu_us_per_chunk)
    rate = moved(before.chunks_per_s, after.chunks_per_s)
    late_ms = done.figures.get("late_p99_ms_open", 0.0)
    found = []
    if cpu > _MOST_MOVEMENT:
        found.append(Doubt(f"the floor's CPU per chunk moved by {cpu:.0%}", clock_only=False))
    if rate > _MOST_MOVEMENT:
        found.append(Doubt(f"the floor's chunks per second moved by {rate:.0%}", clock_only=True))
    if late_ms > _MOST_LATE_MS:
        text = f"open loop: the client sent {late_ms:.1f} ms late (p99)"
        found.append(Doubt(text, clock_only=True))
    for name, measured in done.loads.items():
        title = _LOADS_OF_ONE_THREAD.get(name)
        if title is not None and measured.wait_share > _MOST_WAITING:
            share = f"{measured.wait_share:.0%}"
            text = f"{title}: others held the server's core for {share} of the time"
            found.append(Doubt(text, clock_only=True))
    return found


def undoubted(
    rounds: Sequence[Round], all_doubts: Sequence[Sequence[Doubt]], *, by_clock: bool
) -> list[Round]:
    """The rounds that are good for figures by the clock, or for those of CPU time."""
    return [
        each
        for each, of_round in zip(rounds, all_doubts, strict=True)
        if not any(by_clock or not doubt.clock_only for doubt in of_round)
    ]
