"""What the figures must be and what they are designed to be. Data, and one comparison."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.summary import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of one figure."""

    demanded: float | None = None  # `--check` fails where it is missed
    designed: float | None = None  # the aim; shown, never a failure
    at_least: bool = False  # more is better
    by_clock: bool = False  # else CPU time or memory, which hold on a busy machine

    def holds(self, value: float, limit: float) -> bool:
        """True where the value keeps the limit."""
        return value >= limit if self.at_least else value <= limit


BUDGETS: Mapping[str, Budget] = {
    "cpu_us_per_chunk_64": Budget(demanded=25, designed=16),
    "chunks_per_s_64": Budget(demanded=40_000, designed=60_000, at_least=True, by_clock=True),
    "cpu_us_besides_chat": Budget(designed=250),
    "cpu_us_per_request_embeddings_base64": Budget(designed=2000),
    "delay_max_ms_beside_1mb": Budget(designed=10, by_clock=True),
    "live_p999_ms_live": Budget(designed=10, by_clock=True),
    "kserve_grpc_per_http_request": Budget(designed=2),
    "kserve_grpc_per_chat_token": Budget(designed=3),
    "idle_stream_kb": Budget(designed=60),
    "start_up_s": Budget(designed=2, by_clock=True),
}


def demanded(*, by_clock: bool) -> dict[str, tuple[Budget, float]]:
    """The figures that `--check` looks at, with their limits."""
    return {
        name: (budget, budget.demanded)
        for name, budget in BUDGETS.items()
        if budget.demanded is not None and budget.by_clock == by_clock
    }


def missed(found: Mapping[str, Summary], *, by_clock: bool) -> list[str]:
    """Those whose median misses the limit; one that was not measured misses it too."""
    return [
        name
        for name, (budget, limit) in demanded(by_clock=by_clock).items()
        if name not in found or not budget.holds(found[name].median, limit)
    ]
