"""Every figure that the report can show, in its order. Data only."""

from dataclasses import dataclass

from benchmarks import kserve
from benchmarks.scenario import ALL_SCENARIOS, MOST_STREAMS, Scenario


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the report."""

    name: str
    title: str
    unit: str
    digits: int = 0
    scenario: str = ""  # whose it is; empty for those that no load is the source of


def _of_scenario(scenario: Scenario) -> tuple[Figure, ...]:
    return tuple(
        Figure(
            f"{metric.name}_{scenario.name}",
            metric.title if metric.title.startswith(" ") else f"{metric.title}, {scenario.title}",
            metric.unit,
            metric.digits,
            scenario.name,
        )
        for metric in scenario.metrics
    )


_C_FLOOR = f"floor: C, {MOST_STREAMS} streams"
_UVLOOP_FLOOR = f"floor: bare uvloop, {MOST_STREAMS} streams"

C_FLOOR_FIGURES = (
    Figure("c_floor_us_per_chunk", _C_FLOOR, "us", 1),
    Figure("c_floor_chunks_per_s", _C_FLOOR, "1/s"),
)
FIGURES = (
    *(figure for scenario in ALL_SCENARIOS for figure in _of_scenario(scenario)),
    Figure("tokenization_us_chat", "rendering and tokenizing alone, chat", "us"),
    Figure("tokenization_us_prompt_32kb", "rendering and tokenizing alone, 32 KB", "us"),
    Figure("tokenization_us_prompt_1mb", "rendering and tokenizing alone, 1 MB", "us"),
    Figure("cpu_us_besides_chat", "CPU besides tokenization, chat", "us"),
    Figure("core_us_per_chunk", f"core and engine without HTTP, {MOST_STREAMS} streams", "us", 1),
    *(Figure(name, f"CPU per {title}", "us") for name, title in kserve.TITLES.items()),
    Figure(
        "kserve_grpc_per_http_request", "gRPC's CPU per request, as a multiple of HTTP's", "", 1
    ),
    Figure("kserve_grpc_per_chat_token", "gRPC's CPU per token, as a multiple of a chat's", "", 1),
    *C_FLOOR_FIGURES,
    Figure("floor_us_per_chunk", _UVLOOP_FLOOR, "us", 1),
    Figure("floor_chunks_per_s", _UVLOOP_FLOOR, "1/s"),
    Figure("idle_stream_kb", "memory per idle stream", "KB", 1),
    Figure("start_up_s", "start-up without a model, by the clock", "s", 2),
    Figure("start_up_cpu_s", "start-up without a model, CPU", "s", 2),
)
