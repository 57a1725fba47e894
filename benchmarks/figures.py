"""Every figure that the report can show, in its order. Data only."""

from dataclasses import dataclass

STREAMS = (1, 8, 64)
MOST_STREAMS = max(STREAMS)


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the report."""

    name: str
    title: str
    unit: str
    digits: int = 0


def _of_streams(streams: int) -> tuple[Figure, ...]:
    these = f"{streams} stream{'s' if streams > 1 else ''}"
    core_s = (
        Figure(f"chunks_per_core_s_{streams}", "  less the time others held its core", "1/s"),
    )
    return (
        Figure(f"cpu_us_per_chunk_{streams}", f"CPU per streamed chunk, {these}", "us", 1),
        Figure(f"chunks_per_s_{streams}", f"chunks per second, {these}", "1/s"),
        *(core_s if streams == MOST_STREAMS else ()),
        Figure(f"ttft_p50_ms_{streams}", f"TTFT p50, {these}", "ms", 2),
        Figure(f"ttft_p99_ms_{streams}", f"TTFT p99, {these}", "ms", 2),
    )


FIGURES = (
    *(figure for streams in STREAMS for figure in _of_streams(streams)),
    Figure("tokens_per_chunk", f"tokens per chunk, {MOST_STREAMS} streams", "", 2),
    Figure("core_us_per_chunk", f"core and engine without HTTP, {MOST_STREAMS} streams", "us", 1),
    Figure("floor_us_per_chunk", f"floor: bare uvloop, {MOST_STREAMS} streams", "us", 1),
    Figure("floor_chunks_per_s", f"floor: bare uvloop, {MOST_STREAMS} streams", "1/s"),
    Figure("cpu_us_per_chat", "CPU per chat request, 1 token, whole", "us"),
    Figure("tokenization_us", "  of it rendering and tokenizing", "us"),
    Figure("cpu_us_per_chat_besides", "  of it all besides", "us"),
    Figure("cpu_us_per_streamed_chat", "CPU per chat request, 1 token, streamed", "us"),
    Figure("live_p50_ms", f"/health/live p50 beside {MOST_STREAMS} streams", "ms", 2),
    Figure("live_p999_ms", f"/health/live p99.9 beside {MOST_STREAMS} streams", "ms", 2),
    Figure("idle_stream_kb", "memory per idle stream", "KB", 1),
    Figure("start_up_s", "start-up without a model, by the clock", "s", 2),
    Figure("start_up_cpu_s", "start-up without a model, CPU", "s", 2),
)
