"""vLLM's metrics that the gateway reports for the models of its own vLLM engine, and their sources:
our own metrics, or the engine.

Names, labels and bounds are those of NVIDIA's vLLM backend (its README, "Triton Metrics"); those
that the backend lacks are named as in vLLM 0.32's own `/metrics`. Metrics that would need data from
the engine for each request, such as vLLM's `request_queue_time_seconds`, are left out.
"""

from openai_frontend.metrics import catalog
from openai_frontend.metrics.catalog import MetricSpec

_MODEL = ("model", "version")

# vLLM's histogram -> ours. Bounds: those that are reported; empty: all of ours.
HISTOGRAMS = {
    MetricSpec(
        name="vllm:time_to_first_token_seconds", kind="histogram", labels=_MODEL,
        help="Time to first token in seconds.",
        runbook="See `openai_frontend_time_to_first_token_seconds`.",
        bounds=tuple(bound for bound in catalog.TIME_TO_FIRST_TOKEN.bounds if bound <= 10),
    ): catalog.TIME_TO_FIRST_TOKEN,
    MetricSpec(
        name="vllm:time_per_output_token_seconds", kind="histogram", labels=_MODEL,
        help="Time per output token in seconds.",
        runbook="See `openai_frontend_time_per_output_token_seconds`.",
        bounds=(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5),
    ): catalog.TIME_PER_OUTPUT_TOKEN,
    MetricSpec(
        name="vllm:request_time_per_output_token_seconds", kind="histogram", labels=_MODEL,
        help="Mean time per output token of a request in seconds.",
        runbook="Same values under vLLM's newer name.",
    ): catalog.TIME_PER_OUTPUT_TOKEN,
    MetricSpec(
        name="vllm:e2e_request_latency_seconds", kind="histogram", labels=_MODEL,
        help="End-to-end request latency in seconds.",
        runbook="See `openai_frontend_generation_duration_seconds`.",
        bounds=(1, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    ): catalog.GENERATION_DURATION,
    MetricSpec(
        name="vllm:request_prompt_tokens", kind="histogram", labels=_MODEL,
        help="Prompt tokens per request.", runbook="See `openai_frontend_prompt_tokens`.",
    ): catalog.PROMPT_TOKENS,
    MetricSpec(
        name="vllm:request_generation_tokens", kind="histogram", labels=_MODEL,
        help="Generation tokens per request.",
        runbook="See `openai_frontend_generation_tokens`.",
    ): catalog.GENERATION_TOKENS,
}  # fmt: skip

# vLLM's counter -> our sample
COUNTERS = {
    MetricSpec(
        name="vllm:prompt_tokens", kind="counter", labels=_MODEL,
        help="Prompt tokens processed.", runbook="Its rate is the prompt throughput.",
    ): f"{catalog.PROMPT_TOKENS.name}_sum",
    MetricSpec(
        name="vllm:generation_tokens", kind="counter", labels=_MODEL,
        help="Generation tokens processed.", runbook="Its rate is the generation throughput.",
    ): f"{catalog.GENERATION_TOKENS.name}_sum",
    MetricSpec(
        name="vllm:prefix_cache_queries", kind="counter", labels=_MODEL,
        help="Prefix cache queries, in tokens.", runbook="The denominator of the hit rate.",
    ): f"{catalog.PROMPT_TOKENS.name}_sum",
    MetricSpec(
        name="vllm:prefix_cache_hits", kind="counter", labels=_MODEL,
        help="Prefix cache hits, in tokens.", runbook="See `openai_frontend_cached_prompt_tokens`.",
    ): f"{catalog.CACHED_PROMPT_TOKENS.name}_total",
    MetricSpec(
        name="vllm:prompt_tokens_cached", kind="counter", labels=_MODEL,
        help="Cached prompt tokens.", runbook="Same values under vLLM's newer name.",
    ): f"{catalog.CACHED_PROMPT_TOKENS.name}_total",
}  # fmt: skip

SUCCESS = MetricSpec(
    name="vllm:request_success", kind="counter", labels=(*_MODEL, "finished_reason"),
    help="Finished requests, by reason: stop, length, abort, error.",
    runbook="See `openai_frontend_generations`; `abort`: cancelled by the client.",
)  # fmt: skip
# Our finish reason -> vLLM's
FINISHED_REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}

BY_SOURCE = MetricSpec(
    name="vllm:prompt_tokens_by_source", kind="counter", labels=(*_MODEL, "source"),
    help="Prompt tokens by source: local_compute, local_cache_hit.",
    runbook="The share of `local_cache_hit` is the prompt work saved by the prefix cache.",
)  # fmt: skip

# The gateway sends each choice of `n` as a separate request.
PARAMS_N = MetricSpec(
    name="vllm:request_params_n", kind="histogram", labels=_MODEL,
    help="The request parameter n, as the engine receives it.",
    runbook="Always 1: each choice of `n` is a separate request.", bounds=(1, 2, 5, 10, 20),
)  # fmt: skip

# Reported by the engine
FROM_ENGINE = (
    MetricSpec(
        name="vllm:num_requests_running", kind="gauge", labels=_MODEL,
        help="Requests in the engine's batch.",
        runbook="At `max_num_seqs`: the batch is full, further requests wait.",
    ),
    MetricSpec(
        name="vllm:num_requests_waiting", kind="gauge", labels=_MODEL,
        help="Requests waiting to be scheduled.",
        runbook="The KV cache is full or `max_num_seqs` is reached: add machines, or limit the "
        "tokens of each request (`max_output_tokens`).",
    ),
    MetricSpec(
        name="vllm:kv_cache_usage_perc", kind="gauge", labels=_MODEL,
        help="KV cache usage; 1 means full.",
        runbook="Near 1, requests are preempted: lower `max_num_seqs`, or give the engine more "
        "memory.",
    ),
    MetricSpec(
        name="vllm:num_preemptions", kind="counter", labels=_MODEL,
        help="Requests preempted: removed from the KV cache and restarted later.",
        runbook="Preempted work is done twice: lower `max_num_seqs`, or give the engine more "
        "memory.",
    ),
    MetricSpec(
        name="vllm:num_requests_waiting_by_reason", kind="gauge", labels=(*_MODEL, "reason"),
        help="Waiting requests, by reason: capacity, deferred.",
        runbook="`capacity`: see `vllm:num_requests_waiting`. `deferred`: the request waits for a "
        "grammar, for a slot for requests with a grammar, or for a LoRA slot (`max_loras`).",
    ),
    MetricSpec(
        name="vllm:inter_token_latency_seconds", kind="histogram", labels=_MODEL,
        help="Inter-token latency in seconds: the time between engine steps, for each running "
        "request.",
        runbook="Grows with the batch. Far below the latency that clients measure: the gateway or "
        "the network lags.",
        bounds=(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10,
                20, 40, 80),
    ),
    MetricSpec(
        name="vllm:iteration_tokens_total", kind="histogram", labels=_MODEL,
        help="Tokens per engine step, of prompts and outputs.",
        runbook="Often at `max_num_batched_tokens`: prompts delay output tokens.",
        bounds=(1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    ),
    MetricSpec(
        name="vllm:lora_requests_info", kind="gauge",
        labels=(*_MODEL, "max_lora", "running_lora_adapters", "waiting_lora_adapters"),
        help="LoRA adapters of running and waiting requests; the value is a Unix time in seconds.",
        runbook="Adapters wait while `max_lora` others run: raise `max_loras`, or distribute the "
        "adapters over machines.",
    ),
    MetricSpec(
        name="vllm:cache_config_info", kind="gauge",
        labels=(*_MODEL, "block_size", "cache_dtype", "enable_prefix_caching",
                "gpu_memory_utilization", "num_gpu_blocks"),
        help="Configuration of the KV cache; the value is 1.",
        runbook="`block_size` times `num_gpu_blocks` tokens fit into the cache.",
    ),
)  # fmt: skip

ALL = [*FROM_ENGINE, *HISTOGRAMS, *COUNTERS, SUCCESS, BY_SOURCE, PARAMS_N]
