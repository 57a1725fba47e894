"""How much memory a stream takes that waits for its first token."""

from benchmarks import process_stat
from benchmarks.idle_streams import IdleStreams
from benchmarks.server_process import ServerProcess
from benchmarks.summary import slope


def bytes_per_stream(server: ServerProcess, *, streams: int, steps: int = 5) -> float:
    """The slope of the resident set over growing numbers of streams.

    No point at zero streams: the first ones pay for what is made once.
    """
    points: list[tuple[float, float]] = []
    with IdleStreams(server.port, server.pid) as idle:
        for _ in range(steps + 1):
            idle.add(streams // steps)
            points.append((len(idle), process_stat.resident_bytes(server.pid)))
        idle.check()
    return slope(points)
