"""Every metric of the gateway itself; `docs/metrics.md` is generated from it.

Labels have a bounded set of values: routes as declared, models that are served, and the words
listed here. A client cannot add a value.
"""

from dataclasses import dataclass
from typing import Literal, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from openai_frontend.metrics.instruments import HistogramFamily, ValueFamily

Family = TypeVar("Family", ValueFamily, HistogramFamily)

Kind = Literal["counter", "gauge", "histogram"]
GenerationEnd = Literal["stop", "length", "cancelled", "error"]
StallPhase = Literal["first_token", "inter_token"]
TimeoutKind = Literal["header", "body", "total"]

# Histogram bounds in seconds and tokens: those of vLLM's own histograms, and some beyond
_FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40)  # fmt: skip  # noqa: E501
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)  # fmt: skip  # noqa: E501
_REQUEST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_ANSWER_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 300, 600)
_QUEUE_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOKENS = tuple(digit * 10**power for power in range(7) for digit in (1, 2, 5))
_LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)

_MODEL = ("model",)  # its name in Triton; requests may use an alias
_GENERATION = ("model", "version", "adapter")  # `adapter` is empty without LoRA


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """A metric family: one row of `docs/metrics.md`."""

    name: str  # complete; the samples of a counter add `_total`
    kind: Kind
    help: str
    runbook: str  # what a change means, and what an operator does about it
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # of a histogram's buckets


def counter(registry: CollectorRegistry, spec: MetricSpec) -> ValueFamily:
    return _registered(
        registry, ValueFamily(CounterMetricFamily, spec.name, spec.help, spec.labels)
    )


def gauge(registry: CollectorRegistry, spec: MetricSpec) -> ValueFamily:
    return _registered(registry, ValueFamily(GaugeMetricFamily, spec.name, spec.help, spec.labels))


def histogram(registry: CollectorRegistry, spec: MetricSpec) -> HistogramFamily:
    return _registered(registry, HistogramFamily(spec.name, spec.help, spec.labels, spec.bounds))


def _registered(registry: CollectorRegistry, family: Family) -> Family:
    registry.register(family)
    return family


ALL: list[MetricSpec] = []


def _declare(
    name: str, kind: Kind, help: str, runbook: str, *, labels: tuple[str, ...] = (),
    bounds: tuple[float, ...] = (),
) -> MetricSpec:  # fmt: skip
    spec = MetricSpec(
        name=f"openai_frontend_{name}", kind=kind, help=help, runbook=runbook, labels=labels,
        bounds=bounds,
    )  # fmt: skip
    ALL.append(spec)
    return spec


REQUESTS = _declare(
    "requests", "counter",
    "Requests answered, by route, API, model and status.",
    "5xx: look up the request ids in the log. 503 and 429: see "
    "`openai_frontend_requests_rejected`. `model` is empty if the request named no served "
    "model. Status 499: the client disconnected before the response started. `api` follows from "
    "the route: chat_completions, responses, messages; empty for other routes.",
    labels=("route", "api", "model", "status"),
)  # fmt: skip
REQUEST_DURATION = _declare(
    "request_duration_seconds", "histogram",
    "Time from request to the end of the response in seconds.",
    "Streams end with their last token, so compare with the lengths of the outputs first.",
    labels=("route", "api"), bounds=_REQUEST_S,
)  # fmt: skip
REQUESTS_IN_PROGRESS = _declare(
    "requests_in_progress", "gauge",
    "Requests with a body that have not been answered completely.",
    "Above zero on an idle server: a client keeps a connection open without reading or sending.",
)  # fmt: skip
BUFFERED_BODY_BYTES = _declare(
    "buffered_body_bytes", "gauge",
    "Bytes of request bodies in memory.",
    "Near `max_buffered_body_bytes`: requests get 503; add machines, or raise the limit. Above "
    "zero on an idle server: see `openai_frontend_unreleased_requests`.",
)  # fmt: skip
BUFFERED_AUDIO_BYTES = _declare(
    "buffered_audio_bytes", "gauge",
    "Bytes of audio in memory: decoded for transcriptions, or spoken and not sent yet.",
    "Near `max_buffered_audio_bytes`: transcriptions and speech get 503; add machines, or raise "
    "the limit. Above zero on an idle server: see `openai_frontend_unreleased_requests`.",
)  # fmt: skip
STREAMS_OPEN = _declare(
    "streams_open", "gauge",
    "Open streaming responses.",
    "Near `max_concurrent_requests`: add machines, or raise the limit.",
)  # fmt: skip
REQUESTS_REJECTED = _declare(
    "requests_rejected", "counter",
    "Requests rejected because of load or server state, by reason.",
    "`queue_full`, `queue_timeout`: the model's queue. `rate_limit`, `concurrency`: the limits "
    "of a key. `overloaded`: the server's own limits. `draining`: the server is shutting down. "
    "`model_unavailable`: the model cannot serve. `connections`: the limit of connections or "
    "file descriptors.",
    labels=("model", "reason"),
)  # fmt: skip
REQUESTS_WAITING = _declare(
    "requests_waiting", "gauge",
    "Requests waiting in the gateway's queue.",
    "Above zero for a long time: the engine is saturated; add machines.",
    labels=_MODEL,
)  # fmt: skip
UNRELEASED_REQUESTS = _declare(
    "unreleased_requests", "gauge",
    "Cancelled requests that Triton has not released, or whose model still works on them.",
    "They count against `max_concurrent_requests` and `max_buffered_body_bytes`. Above zero for "
    "a long time: the model keeps working for clients that disconnected; let it check "
    "`is_cancelled()`, or limit its output.",
    labels=_MODEL,
)  # fmt: skip
LOAD_RUNNING = _declare(
    "load_running", "gauge",
    "Requests that the models process, without those that wait in an in-process engine.",
    "For load balancers, as are the other `openai_frontend_load_*`: one value per server.",
)  # fmt: skip
LOAD_WAITING = _declare(
    "load_waiting", "gauge",
    "Requests that wait, in the gateway's queues or in an in-process engine.",
    "Above zero for a long time: send requests elsewhere, or add machines.",
)  # fmt: skip
LOAD_KV_CACHE_USAGE = _declare(
    "load_kv_cache_usage", "gauge",
    "KV cache usage of the fullest in-process engine; 1 means full.",
    "See `vllm:kv_cache_usage_perc`.",
)  # fmt: skip
LOAD_KV_CACHE_BLOCKS = _declare(
    "load_kv_cache_blocks", "gauge",
    "Blocks of the largest KV cache of an in-process engine.",
    "See `vllm:cache_config_info`.",
)  # fmt: skip
LOAD_KV_CACHE_BLOCK_SIZE = _declare(
    "load_kv_cache_block_size", "gauge",
    "Tokens per block of that KV cache.",
    "See `vllm:cache_config_info`.",
)  # fmt: skip
QUEUE_WAIT = _declare(
    "queue_wait_seconds", "histogram",
    "Time a request waited in the gateway's queue in seconds.",
    "Clients see it as part of the time to first token. Shorten the queue to reject sooner, or "
    "add machines.",
    labels=_MODEL, bounds=_QUEUE_S,
)  # fmt: skip
REQUESTS_RUNNING = _declare(
    "requests_running", "gauge",
    "Generations in progress; each choice of `n` is one.",
    "Near `max_concurrent_requests`: add machines, or raise the limit.",
    labels=_GENERATION,
)  # fmt: skip
GENERATIONS = _declare(
    "generations", "counter",
    "Completed generations, by finish reason: stop, length, cancelled, error.",
    "Many `cancelled`: clients give up, see the time to first token. Any `error`: see the log.",
    labels=(*_GENERATION, "finish_reason"),
)  # fmt: skip
OUTPUT_TOKENS = _declare(
    "output_tokens", "counter",
    "Output tokens, counted while they are generated; for responses that are not streamed, at "
    "the end.",
    "Its rate is the current throughput; `openai_frontend_generation_tokens` counts completed "
    "generations.",
    labels=_GENERATION,
)  # fmt: skip
TIME_TO_FIRST_TOKEN = _declare(
    "time_to_first_token_seconds", "histogram",
    "Time from Triton's request to its first token in seconds.",
    "Grows with the engine's queue: see `vllm:num_requests_waiting`, then the lengths of "
    "prompts.",
    labels=_GENERATION, bounds=_FIRST_TOKEN_S,
)  # fmt: skip
TIME_PER_OUTPUT_TOKEN = _declare(
    "time_per_output_token_seconds", "histogram",
    "Mean time per output token after the first in seconds, by generation.",
    "Grows with the batch: fewer concurrent requests, or a faster engine.",
    labels=_GENERATION, bounds=_TOKEN_S,
)  # fmt: skip
GENERATION_DURATION = _declare(
    "generation_duration_seconds", "histogram",
    "Time from Triton's request to its end in seconds.",
    "No observations while generations run: the engine hangs; see "
    "`openai_frontend_engine_stalls`.",
    labels=_GENERATION, bounds=_ANSWER_S,
)  # fmt: skip
PROMPT_TOKENS = _declare(
    "prompt_tokens", "histogram",
    "Tokens per prompt; embeddings and scores count too.",
    "Long prompts delay the tokens of other requests: limit them with `max_prompt_tokens`.",
    labels=_GENERATION, bounds=_TOKENS,
)  # fmt: skip
CACHED_PROMPT_TOKENS = _declare(
    "cached_prompt_tokens", "counter",
    "Prompt tokens found in the engine's prefix cache.",
    "Few, although prompts share prefixes: route them to the same machine.",
    labels=_GENERATION,
)  # fmt: skip
TRANSFERRED_PROMPT_TOKENS = _declare(
    "transferred_prompt_tokens", "counter",
    "Prompt tokens whose KV cache came from a prefill server.",
    "Compare with `openai_frontend_prompt_tokens`: the share that decode servers do not compute.",
    labels=_GENERATION,
)  # fmt: skip
REMOTE_PREFILLS = _declare(
    "remote_prefills", "counter",
    "Completed generations whose prompt a prefill server computed.",
    "See `openai_frontend_local_prefills` for the others.",
    labels=_MODEL,
)  # fmt: skip
LOCAL_PREFILLS = _declare(
    "local_prefills", "counter",
    "Prompts that a decode server computed itself, by reason: short, unsupported, no_peer, "
    "peer_unreachable, peer_timeout, peer_refused, peer_invalid, digest, not_transferred, "
    "engine_failed.",
    "`short` is normal. `no_peer`, `peer_unreachable`: prefill servers are down. `peer_refused`: "
    "they are full, or reject the request; see the log. `digest`: a prefill server is broken. "
    "`not_transferred`: the transfer came too late or failed (docs/disaggregation.md).",
    labels=(*_MODEL, "reason"),
)  # fmt: skip
GENERATION_TOKENS = _declare(
    "generation_tokens", "histogram",
    "Tokens per completed generation.",
    "Long outputs occupy the engine longer: limit them with `max_output_tokens`.",
    labels=_GENERATION, bounds=_TOKENS,
)  # fmt: skip
IMAGES = _declare(
    "images", "counter",
    "Images in requests, known ones included.",
    "Compare with `vllm:mm_cache_hits`: how many cost no decoding.",
    labels=_MODEL,
)  # fmt: skip
IMAGE_BYTES = _declare(
    "image_bytes", "counter",
    "Bytes of images in requests, decoded from base64.",
    "Divided by `openai_frontend_images`: the mean size. Clients that resend large images may name "
    "them by `uuid` instead.",
    labels=_MODEL,
)  # fmt: skip
IMAGE_PIXELS = _declare(
    "image_pixels", "counter",
    "Pixels of images in requests, by their headers.",
    "Far more than the model uses: clients may send smaller images, or `detail: low`.",
    labels=_MODEL,
)  # fmt: skip
AUDIO_BYTES = _declare(
    "audio_bytes", "counter",
    "Bytes of audio files in requests, those of chats included.",
    "Compare with `openai_frontend_audio_seconds`: FLAC or Opus need less network than WAV.",
    labels=_MODEL,
)  # fmt: skip
AUDIO_SECONDS = _declare(
    "audio_seconds", "counter",
    "Seconds of audio, by direction: input (to be transcribed, or in chats), output (spoken). Of "
    "chats, vLLM's engine in process counts it, with the label `version`: once per choice, known "
    "audio included.",
    "Its rate is seconds of audio per second: compare with `openai_frontend_generations`.",
    labels=(*_MODEL, "direction"),
)  # fmt: skip
AUDIO_DECODING = _declare(
    "audio_decoding_seconds", "histogram",
    "Time to decode and resample an audio file in seconds, with the wait for a process.",
    "Grows with the length of files. Long for short files: all processes are busy; add CPUs.",
    labels=_MODEL, bounds=_QUEUE_S,
)  # fmt: skip
MEDIA_FETCHES = _declare(
    "media_fetches", "counter",
    "URLs of images and audio in requests, by result: fetched, not_allowed (host or form), "
    "unresolved, refused_address (not public), unreachable (also TLS and protocol errors), "
    "timeout, status (not 200), compressed, chunks (too many), too_large, busy (too many fetches), "
    "aborted (by the client, another URL's failure or a memory limit). Zero unless "
    "`allowed_media_domains` is set.",
    "`not_allowed`: clients use hosts that are not in `allowed_media_domains`. "
    "`refused_address`: an allowed name resolves to a private address; check who controls it. "
    "Others: see the log lines `media was not fetched`.",
    labels=("result",),
)  # fmt: skip
REPLICA_INFO = _declare(
    "replica_info", "gauge",
    "1, with the gateway's `replica_name`, which the response header `x-served-by` carries too.",
    "Join it with other series by `instance` to find a replica that a client names.",
    labels=("replica",),
)  # fmt: skip
EVENT_LOOP_LAG = _declare(
    "event_loop_lag_seconds", "histogram",
    "Delay of a timer on the event loop in seconds.",
    "Every stream waits for the longest callback. Above 0.1 s: very long prompts or bodies, or "
    "too little CPU.",
    bounds=_LAG_S,
)  # fmt: skip
FAST_PATH_TOKENS = _declare(
    "fast_path_tokens", "counter",
    "Tokens of text written to clients on the fast path.",
    "Divided by `openai_frontend_fast_path_writes`: tokens per write. Near 1, the gateway keeps "
    "up; above, the event loop or clients lag behind the engine and get several tokens at once.",
)  # fmt: skip
FAST_PATH_WRITES = _declare(
    "fast_path_writes", "counter",
    "Writes to clients on the fast path.",
    "See `openai_frontend_fast_path_tokens`.",
)  # fmt: skip
SLOW_CLIENTS_DISCONNECTED = _declare(
    "slow_clients_disconnected", "counter",
    "Streams ended because the client did not read.",
    "Stalled clients, or a proxy in between; their generations were cancelled.",
)  # fmt: skip
TIMEOUTS = _declare(
    "timeouts", "counter",
    "Requests that timed out, by kind: header, body, total.",
    "`header`, `body`: slow or hostile clients. `total`: responses that take longer than the "
    "limit.",
    labels=("kind",),
)  # fmt: skip
ENGINE_STALLS = _declare(
    "engine_stalls", "counter",
    "Times an engine was found to be stuck.",
    "`first_token`: a generation does not start; `inter_token`: a generation stopped. The "
    "engine's log has the cause; `openai_frontend_engine_restarts` counts the recoveries.",
    labels=("model", "phase"),
)  # fmt: skip
ENGINE_RESTARTS = _declare(
    "engine_restarts", "counter",
    "Restarts of a model's engine.",
    "One is a crash to investigate; several in a row: the model cannot run here.",
    labels=_MODEL,
)  # fmt: skip
MODEL_SLEEPING = _declare(
    "model_sleeping", "gauge",
    "1 while a model sleeps; absent for models that never slept.",
    "1 for most of the time: the model is needed rarely; `idle_unload_s` would free all memory.",
    labels=_MODEL,
)  # fmt: skip
MODEL_FREED_BYTES = _declare(
    "model_freed_bytes", "gauge",
    "Bytes that a sleeping model has freed; 0 while it is awake, or if its engine does not say.",
    "Far below the model's size: another process uses the GPU, or the level keeps the weights.",
    labels=_MODEL,
)  # fmt: skip
MODEL_WAKE = _declare(
    "model_wake_seconds", "histogram",
    "Time until a sleeping model was awake in seconds. Its count is the number of wakes.",
    "Many wakes: raise `idle_sleep_s`, or the memory budget. Slow: see `sleep_level`.",
    labels=_MODEL, bounds=_QUEUE_S,
)  # fmt: skip
GUARD_CHECKS = _declare(
    "guard_checks", "counter",
    "Checks of chats by a moderation model, by stage and result.",
    "failed: the moderation model, which is empty if it could not be loaded, does not answer; the "
    "log has the cause. blocked: the prompt or a sentence of the output was stopped.",
    labels=("model", "stage", "result"),
)  # fmt: skip
LOG_LINES_DROPPED = _declare(
    "log_lines_dropped", "counter",
    "Log lines dropped because the buffer was full or a write failed.",
    "Growing: the disk is full, or stderr is not read fast enough (docs/tracing-and-logs.md).",
)  # fmt: skip
RATE_LIMIT_STORAGE_FAILURES = _declare(
    "rate_limit_storage_failures", "counter",
    "Requests whose limit was counted in this process because `rate_limit_storage` did not answer.",
    "Growing: Redis is down or slow, and each gateway allows a key its whole limit.",
)  # fmt: skip
BUCKET_COPY_FAILURES = _declare(
    "bucket_copy_failures", "counter",
    "Times that a model repository in object storage could not be copied completely.",
    "Growing: the models are those of the last complete copy. The log has the cause, such as "
    "expired credentials (docs/object-storage.md).",
)  # fmt: skip
TRACES_DROPPED = _declare(
    "traces_dropped", "counter",
    "Sampled requests whose spans were not exported.",
    "Growing: the collector of `otlp_endpoint` is down, rejects spans, or is too slow; for the "
    "last, lower `trace_sample_ratio`.",
)  # fmt: skip
