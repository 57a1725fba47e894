"""The results of a soak as text and JSON, and whether it failed."""

import dataclasses
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import orjson

from scripts.soak.memory import Sample, second_half, slopes_mb_h


@dataclass
class Tally:
    """One scenario's requests."""

    seconds: list[float] = field(default_factory=list)  # of the requests that ended as expected
    errors: Counter[str] = field(default_factory=Counter)  # kind -> how many
    lost: int = 0  # errors of a model whose process had been killed


@dataclass(frozen=True, slots=True)
class Report:
    """All results."""

    seed: int
    minutes: float
    requests: int
    errors: dict[str, dict[str, int]]  # scenario -> kind -> how many
    latency_ms: dict[str, tuple[int, float, float]]  # scenario -> requests, p50, p99.9
    memory_mb: tuple[float, float, float]  # at the start, most, at the end
    # of the gateway, and of its descendants: stubs of Python models, vLLM's engines, media workers
    slopes_mb_h: dict[str, float]
    allowed_mb_h: float
    threads: tuple[int, int]  # at the start and at the end of the load
    descriptors: tuple[int, int]
    left: str  # what the load left behind; empty: nothing
    killed: dict[str, int]  # processes of models: kind -> how many
    lost: dict[str, int]  # scenario -> requests that ended with an error because of that
    samples: Sequence[Sample]  # of the whole load, to trace growth

    @property
    def failures(self) -> list[str]:
        """One line for each reason to fail."""
        found = [
            f"{scenario}: {count} x {kind}"
            for scenario, kinds in self.errors.items()
            for kind, count in kinds.items()
        ]
        found += [
            f"{scenario}: no request succeeded"
            for scenario, (count, *_) in self.latency_ms.items()
            if not count
        ]
        found += [
            f"{memory} grows by {slope:.1f} MB an hour"
            for memory, slope in self.slopes_mb_h.items()
            if slope > self.allowed_mb_h
        ]
        return found + ([self.left] if self.left else [])

    def json(self) -> bytes:
        fields = {**dataclasses.asdict(self), "failures": self.failures}
        del fields["samples"]  # samples of a day are large: see samples_csv
        return orjson.dumps(fields, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    def samples_csv(self) -> str:
        """Return all samples, with their time in seconds since the first one."""
        start = self.samples[0].at_s
        names = ["at_s", "memory_bytes", "below_bytes", "threads", "descriptors"]
        rows = [
            [f"{each.at_s - start:.1f}", *(str(getattr(each, name)) for name in names[1:])]
            for each in self.samples
        ]
        return "".join(",".join(row) + "\n" for row in (names, *rows))

    def text(self) -> str:
        rows = [
            f"  {name:<16} {count:>8} {median:>10.1f} {tail:>10.1f} {sum(self._kinds(name)):>7}"
            for name, (count, median, tail) in self.latency_ms.items()
        ]
        start, most, end = self.memory_mb
        return "\n".join(
            [
                f"soak of {self.minutes:.1f} minutes, seed {self.seed}: {self.requests} requests",
                f"  {'scenario':<16} {'requests':>8} {'p50 ms':>10} {'p99.9 ms':>10} {'errors':>7}",
                *rows,
                *self._killed(),
                f"memory: {start:.0f} MB at the start, {most:.0f} at most, {end:.0f} at the end",
                f"slopes over the second half, in MB/h (allowed {self.allowed_mb_h:.1f}):",
                *(f"  {memory}: {slope:+.1f}" for memory, slope in self.slopes_mb_h.items()),
                "threads {} -> {}, descriptors {} -> {}".format(*self.threads, *self.descriptors),
                "nothing is left" if not self.left else f"LEFT: {self.left}",
                *(f"FAILED: {each}" for each in self.failures),
            ]
        )

    def _killed(self) -> list[str]:
        if not self.killed:
            return []
        kinds, lost = (
            ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"
            for counts in (self.killed, self.lost)
        )
        return [f"killed or stopped: {kinds}; requests that ended with that error: {lost}"]

    def _kinds(self, scenario: str) -> Sequence[int]:
        return list(self.errors.get(scenario, {}).values())


def report(  # noqa: PLR0913  each is one part of the report
    tallies: dict[str, Tally],
    samples: Sequence[Sample],
    *,
    seed: int,
    left: str,
    slope_limit_mb_h: float,
    noise_mb: float,
    killed: Mapping[str, int] = MappingProxyType({}),
) -> Report:
    """`noise_mb` is what an allocator may keep or give back; a short soak cannot detect a slope
    below that over its second half.
    """
    half = second_half(samples)
    hours = (half[-1].at_s - half[0].at_s) / 3600
    memory = [each.memory_bytes / 1e6 for each in samples]
    return Report(
        seed=seed,
        minutes=(samples[-1].at_s - samples[0].at_s) / 60,
        requests=sum(len(each.seconds) + each.errors.total() for each in tallies.values()),
        errors={name: dict(each.errors) for name, each in tallies.items() if each.errors},
        latency_ms={name: _latency(each.seconds) for name, each in sorted(tallies.items())},
        memory_mb=(memory[0], max(memory), memory[-1]),
        slopes_mb_h=_slopes(half, killed=bool(killed)),
        allowed_mb_h=max(slope_limit_mb_h, noise_mb / hours),
        threads=(samples[0].threads, samples[-1].threads),
        descriptors=(samples[0].descriptors, samples[-1].descriptors),
        left=left,
        killed=dict(killed),
        lost={name: each.lost for name, each in tallies.items() if each.lost},
        samples=samples,
    )


def _slopes(samples: Sequence[Sample], *, killed: bool) -> dict[str, float]:
    """Processes that take the place of killed ones grow by what they fill at first: then only the
    gateway's own memory is judged.
    """
    slopes = slopes_mb_h([replace(each, each_below={}) for each in samples] if killed else samples)
    return {name: slope for name, slope in slopes.items() if name == "memory" or not killed}


def _latency(seconds: Sequence[float]) -> tuple[int, float, float]:
    """Return the count, the median and the 99.9th percentile, in milliseconds."""
    if len(seconds) < 2:
        only = 1000 * sum(seconds)
        return len(seconds), only, only
    cuts = statistics.quantiles(seconds, n=1000, method="inclusive")
    return len(seconds), 1000 * statistics.median(seconds), 1000 * cuts[-1]
