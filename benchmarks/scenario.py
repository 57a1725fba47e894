"""The loads of a round, and the metrics reported for each. Data only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks import metric, request
from benchmarks.metric import Metric

MOST_STREAMS = 64  # of the scenario that budgets, floors and profile are about


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One load. Its options are fields of `Load`."""

    name: str
    title: str
    metrics: tuple[Metric, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, Any] | None = None  # the options of another load at the same time
    length: Literal["stream", "request", "liveness"] = "stream"  # which of the plan's times
    optional: bool = False  # a server that refuses it with 400 skips it


_STREAMED = (
    metric.CPU_PER_CHUNK,
    metric.CPU_PER_TOKEN,
    metric.TOKENS_PER_CHUNK,
    metric.CHUNKS_PER_S,
    metric.TTFT_P50,
    metric.TTFT_P99,
)
_OF_LATENCY = (
    metric.TTFT_P50,
    metric.TTFT_P99,
    metric.LATENCY_P50,
    metric.LATENCY_P99,
)
_PACED = (metric.GAP_P50, metric.GAP_P99, metric.GAP_P999, metric.GAP_MAX, metric.DELAY_MAX)


def _streams(streams: int) -> Scenario:
    core_s = (metric.CHUNKS_PER_CORE_S,) if streams == MOST_STREAMS else ()
    return Scenario(
        name=str(streams),
        title=f"{streams} stream{'s' if streams > 1 else ''}",
        metrics=(*_STREAMED[:4], *core_s, *_STREAMED[4:]),
        options={"connections": streams},
    )


def _requests(name: str, title: str, *, optional: bool = False, **options: Any) -> Scenario:
    """Answers of one token."""
    usual = {"connections": 8, "stream": False, "tokens": (1, 1)}
    return Scenario(
        name=name,
        title=title,
        metrics=(metric.CPU_PER_REQUEST,),
        options={**usual, **options},
        length="request",
        optional=optional,
    )


def _parsed(kind: str, title: str, model: str = request.MODEL) -> Scenario:
    """Frames that hold more than text, or whose text is not the content."""
    return Scenario(
        name=f"{MOST_STREAMS}_{kind}",
        title=f"{MOST_STREAMS} {title}",
        metrics=(metric.CPU_PER_CHUNK, metric.CHUNKS_PER_S, metric.TTFT_P50, metric.TTFT_P99),
        options={"connections": MOST_STREAMS, "kind": kind, "model": model, "exact": False},
        optional=True,
    )


def _prompt(name: str, size: str, prompt_bytes: int) -> Scenario:
    """One at a time, or the time measured would cut through many."""
    return _requests(
        name,
        f"prompt of {size}",
        connections=1,
        aligned=True,
        model=request.LONG_MODEL,
        prompt_bytes=prompt_bytes,
    )


def _embeddings(encoding_format: str) -> Scenario:
    kind = f"embeddings_{encoding_format}"
    size = f"{request.EMBEDDING_INPUTS} x {request.EMBEDDING_DIMENSIONS}"
    return _requests(
        kind, f"embeddings {size}, {encoding_format}", kind=kind, model=request.EMBEDDING_MODEL
    )


_WHOLE = 200  # tokens
_WHOLE_ANSWERS: Mapping[str, Any] = {"connections": 32, "tokens": (_WHOLE, _WHOLE)}

_APIS = {"responses": "Responses", "messages": "Messages"}


def _streams_by(api: str, title: str) -> tuple[Scenario, Scenario]:
    """Streams of another API than chat: of text, and of tool calls."""
    calls = f"{api}_calls"
    return (
        Scenario(
            name=f"{MOST_STREAMS}_{api}",
            title=f"{MOST_STREAMS} streams by {title}",
            metrics=_STREAMED,
            options={"connections": MOST_STREAMS, "kind": api},
        ),
        _parsed(calls, f"streams of tool calls by {title}", request.CALLS_MODEL),
    )


def _requests_by(api: str, title: str) -> tuple[Scenario, Scenario]:
    """Answers of another API than chat."""
    return (
        _requests(api, f"answer by {title}", kind=api),
        _requests(
            f"whole_{api}",
            f"whole answer of {_WHOLE} tokens by {title}",
            kind=api,
            **_WHOLE_ANSWERS,
        ),
    )


STREAMS = tuple(_streams(streams) for streams in (1, 8, MOST_STREAMS, 256))
SCENARIOS = (
    *STREAMS,
    Scenario(
        name="64_beside_1000_idle",
        title=f"{MOST_STREAMS} streams beside 1,000 idle",
        metrics=_STREAMED,
        options={"connections": MOST_STREAMS, "idle": 1000},
    ),
    Scenario(
        name="64_by_4",
        title=f"{MOST_STREAMS} streams, 4 tokens a step",
        metrics=_STREAMED,
        # Four times as long, so that an answer has as many chunks as elsewhere
        options={
            "connections": MOST_STREAMS,
            "model": request.BY_FOUR_MODEL,
            "tokens": (512, 1536),
        },
    ),
    Scenario(
        name="64_completions",
        title=f"{MOST_STREAMS} streams of completions",
        metrics=_STREAMED,
        options={"connections": MOST_STREAMS, "kind": "completion"},
    ),
    Scenario(
        name="64_tools",
        title=f"{MOST_STREAMS} streams with tools",
        metrics=_STREAMED,
        options={"connections": MOST_STREAMS, "kind": "tools"},
        optional=True,
    ),
    _parsed("calls", "streams of tool calls", request.CALLS_MODEL),
    _parsed("reasoning", "streams of reasoning", request.REASONING_MODEL),
    _parsed("logprobs", "streams with log probabilities"),
    *(each for api, title in _APIS.items() for each in _streams_by(api, title)),
    _requests("chat", "chat"),
    _requests("whole", f"whole answer of {_WHOLE} tokens", **_WHOLE_ANSWERS),
    _requests("whole_tools", "the same with tools", kind="tools", optional=True, **_WHOLE_ANSWERS),
    _requests("streamed_chat", "streamed chat", stream=True),
    *(each for api, title in _APIS.items() for each in _requests_by(api, title)),
    _requests("completion", "completion", kind="completion"),
    _requests("json_schema", "chat with a JSON schema", kind="json_schema", optional=True),
    _requests("tools", "chat with tools", kind="tools", optional=True),
    _prompt("prompt_100b", "100 bytes", 100),
    _prompt("prompt_32kb", "32 KB", 32 * 1024),
    _prompt("prompt_1mb", "1 MB", 1024 * 1024),
    _embeddings("float"),
    _embeddings("base64"),
)
# Those below are run by `measurement`, each in a way of its own.
CLOSED_LOOP = Scenario(
    name="closed",
    title="closed loop of 64",
    metrics=(metric.REQUESTS_PER_S, *_OF_LATENCY),
    options={"connections": MOST_STREAMS, "tokens": (16, 48)},
)
OPEN_SHARE = 0.6  # of the closed loop's rate
OPEN_LOOP = Scenario(
    name="open",
    title=f"open loop, {OPEN_SHARE:.0%} of the closed one's rate",
    metrics=(metric.REQUESTS_PER_S, *_OF_LATENCY, metric.LATE_P99),
    options=CLOSED_LOOP.options,
)
PACED = Scenario(
    name="paced",
    title=f"{MOST_STREAMS} streams of {request.PACE_PER_S:.0f} tokens/s",
    metrics=_PACED,
    options={
        "connections": MOST_STREAMS,
        "model": request.PACED_MODEL,
        "tokens": (100_000, 100_000),  # none ends meanwhile
        "gaps": True,
        "drain": False,
    },
)
LONG_PROMPT = next(each for each in SCENARIOS if each.name == "prompt_1mb")
PACED_BESIDE_LONG = Scenario(
    name="beside_1mb",
    title="the same beside 1 MB prompts",
    metrics=(metric.GAP_P99, metric.GAP_MAX, metric.DELAY_P99, metric.DELAY_MAX),
    options=PACED.options,
    length="liveness",  # each prompt takes long, and the worst of few says little
)
LIVENESS = Scenario(
    name="live",
    title=f"beside {MOST_STREAMS} streams",
    metrics=(metric.LIVE_P50, metric.LIVE_P999),
    options={"connections": MOST_STREAMS, "probes_per_s": 200.0},
    length="liveness",
)
ALL_SCENARIOS = (*SCENARIOS, CLOSED_LOOP, OPEN_LOOP, PACED, PACED_BESIDE_LONG, LIVENESS)
