"""What a run measures, how often, how long."""

from dataclasses import dataclass

from benchmarks.peers.load import EMBEDDINGS, Load
from benchmarks.peers.servers import MODEL

_MOST_OPEN = 512
_OPEN_SHARE = 0.5  # of the slowest server's requests per second at the most streams


@dataclass(frozen=True, slots=True)
class Plan:
    """Numbers only."""

    rounds: int = 3
    streams: tuple[int, ...] = (1, 8, 32, 64)
    tokens: int = 200
    warm_up_s: float = 2.0
    measured_s: float = 6.0
    open_loop: bool = True
    rate_per_s: float | None = None  # of the open loop; None: from the first round

    def closed(self, streams: int) -> tuple[str, Load]:
        """A closed loop's name and load."""
        name = f"{streams} stream{'s' if streams > 1 else ''}"
        return name, self._load(connections=streams)

    def opened(self, rate_per_s: float) -> tuple[str, Load]:
        """The open loop's."""
        load = self._load(connections=_MOST_OPEN, rate_per_s=rate_per_s)
        return f"open loop, {rate_per_s:.1f} requests/s", load

    def embeddings(self, batch: int, encoding: str) -> tuple[str, Load]:
        """A closed loop of eight connections, or of two where a request holds many texts."""
        name = f"{batch} text{'s' if batch > 1 else ''} a request, {encoding}"
        connections = 8 if batch == 1 else 2
        load = self._load(kind=EMBEDDINGS, connections=connections, batch=batch, encoding=encoding)
        return name, load

    def _load(self, **values: object) -> Load:
        times = {"warm_up_s": self.warm_up_s, "measured_s": self.measured_s}
        return Load(port=0, pids={}, model=MODEL, tokens=self.tokens, **times, **values)  # type: ignore[arg-type]

    def rate(self, tokens_per_s: float) -> float:
        """The open loop's rate where the slowest server makes this many tokens a second."""
        return self.rate_per_s or round(_OPEN_SHARE * tokens_per_s / self.tokens, 1)
