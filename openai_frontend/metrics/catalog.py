"""Every family that the gateway counts of itself. `docs/metrics.md` is made of it.

Labels have values from closed sets alone: addresses as routes spell them, models that are served,
the words listed here. A client cannot make one.
"""

from typing import Literal

from openai_frontend.metrics.family import Kind, MetricSpec

GenerationEnd = Literal["stop", "length", "cancelled", "error"]
ReloadOutcome = Literal["taken_up", "refused"]
StallPhase = Literal["first_token", "inter_token"]
TimeoutKind = Literal["head", "body", "total"]

# Seconds, and tokens. They hold the bounds that vLLM has for the same, and some beyond.
_FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40)  # fmt: skip  # noqa: E501
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)  # fmt: skip  # noqa: E501
_REQUEST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_ANSWER_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 300, 600)
_QUEUE_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOKENS = tuple(digit * 10**power for power in range(7) for digit in (1, 2, 5))
_LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)

_MODEL = ("model",)  # its name in Triton, whatever name requests give it
_ANSWER = ("model", "version", "adapter")  # the version's number; `adapter` is empty without one

ALL: list[MetricSpec] = []


def _declare(
    name: str, kind: Kind, help: str, runbook: str, *, labels: tuple[str, ...] = (),
    bounds: tuple[float, ...] = (),
) -> MetricSpec:  # fmt: skip
    family = MetricSpec(
        name=f"openai_frontend_{name}", kind=kind, help=help, runbook=runbook, labels=labels,
        bounds=bounds,
    )  # fmt: skip
    ALL.append(family)
    return family


REQUESTS = _declare(
    "requests", "counter", "Requests that have been answered.",
    "5xx: read the log by request id. 503 and 429: see `openai_frontend_requests_rejected`. "
    "`model` is empty where none was found; 499 is a client that went away before its answer "
    "began.",
    labels=("route", "model", "status"),
)  # fmt: skip
REQUEST_S = _declare(
    "request_duration_seconds", "histogram", "Seconds from a request to the end of its answer.",
    "Streams end when their answer does: compare it with the lengths of answers first.",
    labels=("route",), bounds=_REQUEST_S,
)  # fmt: skip
AT_WORK = _declare(
    "requests_in_progress", "gauge", "Requests with a body that are not answered to their end.",
    "Not zero on an idle server: a client holds a connection without reading or sending.",
)  # fmt: skip
STREAMS = _declare(
    "streams_open", "gauge", "Streamed responses that are open.",
    "Near `max_concurrent_requests`: more machines, or a larger limit.",
)  # fmt: skip
REJECTED = _declare(
    "requests_rejected", "counter", "Requests that were refused for load or state, by reason.",
    "The reason names the limit: `queue_full` and `queue_timeout` the model's queue, `rate_limit` "
    "and `concurrency` a key's share, `overloaded` the places of the server, `draining` a server "
    "that ends, `model_unavailable` a model that cannot serve, `connections` the server's "
    "descriptors.",
    labels=("model", "reason"),
)  # fmt: skip
WAITING = _declare(
    "requests_waiting", "gauge", "Requests that wait in the gateway's queue.",
    "Above zero for long: the engine has more to do than it can; more machines.", labels=_MODEL,
)  # fmt: skip
UNRELEASED = _declare(
    "unreleased_requests", "gauge", "Cancelled requests that Triton has not released yet.",
    "They count against `max_concurrent_requests` and `max_buffered_body_bytes`. Above zero for "
    "long: the model goes on for clients that have gone; let it look at `is_cancelled()`, or "
    "limit its answers.",
    labels=_MODEL,
)  # fmt: skip
QUEUE_S = _declare(
    "queue_wait_seconds", "histogram", "Seconds that a request waited in the gateway's queue.",
    "Part of what a client feels as the time to the first token; shorten the queue to refuse "
    "sooner, or add machines.",
    labels=_MODEL, bounds=_QUEUE_S,
)  # fmt: skip
RUNNING = _declare(
    "requests_running", "gauge", "Answers being made now; each choice of `n` is one.",
    "Near `max_concurrent_requests`: more machines, or a larger limit.", labels=_ANSWER,
)  # fmt: skip
ENDED = _declare(
    "generations", "counter", "Answers, by how they ended: stop, length, cancelled, error.",
    "Many `cancelled`: clients that give up, see the time to the first token. Any `error`: see the "
    "log.",
    labels=(*_ANSWER, "finish_reason"),
)  # fmt: skip
OUTPUT_TOKENS = _declare(
    "output_tokens", "counter",
    "Tokens of answers as they come; those of an answer that is not streamed when it ends.",
    "Its rate is the throughput at this moment; `openai_frontend_generation_tokens` counts answers "
    "that have ended.",
    labels=_ANSWER,
)  # fmt: skip
FIRST_TOKEN_S = _declare(
    "time_to_first_token_seconds", "histogram", "Seconds from Triton's request to its first token.",
    "Grows with the engine's queue: see `vllm:num_requests_waiting`, then the lengths of prompts.",
    labels=_ANSWER, bounds=_FIRST_TOKEN_S,
)  # fmt: skip
TOKEN_S = _declare(
    "time_per_output_token_seconds", "histogram",
    "Seconds for each token after the first, by answer.",
    "Grows with the batch: fewer requests at a time, or a faster engine.",
    labels=_ANSWER, bounds=_TOKEN_S,
)  # fmt: skip
ANSWER_S = _declare(
    "generation_duration_seconds", "histogram", "Seconds from Triton's request to its end.",
    "None ends while some run: the engine hangs; see `openai_frontend_engine_stalls`.",
    labels=_ANSWER, bounds=_ANSWER_S,
)  # fmt: skip
PROMPT_TOKENS = _declare(
    "prompt_tokens", "histogram", "Tokens of each prompt; embeddings and scores count too.",
    "Longer prompts take the engine's time from answers: cap them with `max_input_tokens`.",
    labels=_ANSWER, bounds=_TOKENS,
)  # fmt: skip
CACHED_TOKENS = _declare(
    "cached_prompt_tokens", "counter", "Tokens of prompts that the engine's prefix cache held.",
    "Few, where prompts begin alike: route them to the same machine.", labels=_ANSWER,
)  # fmt: skip
COMPLETION_TOKENS = _declare(
    "generation_tokens", "histogram", "Tokens of each answer.",
    "Longer answers hold their places longer: cap them with `max_output_tokens`.",
    labels=_ANSWER, bounds=_TOKENS,
)  # fmt: skip
RELOADS = _declare(
    "settings_reloads", "counter", "Times that the settings were read again, by outcome.",
    "Any `refused`: the log says in one line what is wrong with them; the old ones are in force.",
    labels=("outcome",),
)  # fmt: skip
LAG_S = _declare(
    "event_loop_lag_seconds", "histogram", "Seconds that a timer of the event loop comes late.",
    "What one callback takes, every stream waits for. Above 0.1 s: very long prompts or bodies, or "
    "too little CPU.",
    bounds=_LAG_S,
)  # fmt: skip
RELAYED_TEXTS = _declare(
    "fast_path_tokens", "counter", "Texts of tokens that left by the short way to their clients.",
    "Divided by `openai_frontend_fast_path_writes`: tokens per write. Near 1 the gateway keeps up; "
    "more is an event loop or clients that lag behind the engine, and get several at a time.",
)  # fmt: skip
RELAY_WRITES = _declare(
    "fast_path_writes", "counter", "Writes that took those texts to their clients.",
    "See `openai_frontend_fast_path_tokens`.",
)  # fmt: skip
READERS_DROPPED = _declare(
    "slow_clients_disconnected", "counter",
    "Streams that were ended because their client did not read.",
    "Clients or a proxy that stall; their answers were cancelled.",
)  # fmt: skip
TIMEOUTS = _declare(
    "timeouts", "counter",
    "Requests that were ended for time: head, body, total.",
    "`head` and `body`: slow or hostile clients. `total`: answers longer than the limit allows.",
    labels=("kind",),
)  # fmt: skip
WATCHDOG = _declare(
    "engine_stalls", "counter", "Times that an engine was found to be stuck.",
    "`first_token`: no answer begins; `inter_token`: answers stand still. The engine's log says "
    "why; see `openai_frontend_engine_restarts` for what was done.",
    labels=("model", "phase"),
)  # fmt: skip
ENGINE_RESTARTS = _declare(
    "engine_restarts", "counter", "Times that a model's engine was started again.",
    "One is a crash to look into; a row of them is a model that cannot run here.", labels=_MODEL,
)  # fmt: skip
LOG_LINES_LOST = _declare(
    "log_lines_dropped", "counter", "Lines of the log that found no room, or could not be written.",
    "Growing: the disk is full, or nobody reads standard error fast enough "
    "(docs/tracing-and-logs.md).",
)  # fmt: skip
TRACE_REQUESTS_LOST = _declare(
    "traces_dropped", "counter", "Sampled requests whose spans no collector has taken.",
    "Growing: the collector of `otlp_endpoint` is away, refuses, or is too slow; a smaller "
    "`trace_sample_ratio` helps against the last.",
)  # fmt: skip
