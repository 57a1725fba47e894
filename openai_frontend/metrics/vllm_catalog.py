"""The families of vLLM's that the gateway tells for the models of its own vLLM engine, and where
their values are: in our own families, or in what the engine says of itself.

Names, labels and bounds are those of NVIDIA's vLLM backend (its README, "Triton Metrics"); what
that backend leaves out is named as in vLLM 0.32's own `/metrics`. Not told is what would have to be
asked of the engine for each request, such as vLLM's `request_queue_time_seconds`.
"""

from openai_frontend.metrics import catalog
from openai_frontend.metrics.family import MetricSpec

_MODEL = ("model", "version")

# vLLM's histogram -> ours that holds it. Bounds: those that are told; none stand for all of ours.
HISTOGRAMS = {
    MetricSpec(
        name="vllm:time_to_first_token_seconds", kind="histogram", labels=_MODEL,
        help="Histogram of time to first token in seconds.",
        runbook="As `openai_frontend_time_to_first_token_seconds`.",
        bounds=tuple(bound for bound in catalog.FIRST_TOKEN_S.bounds if bound <= 10),
    ): catalog.FIRST_TOKEN_S,
    MetricSpec(
        name="vllm:time_per_output_token_seconds", kind="histogram", labels=_MODEL,
        help="Histogram of time per output token in seconds.",
        runbook="As `openai_frontend_time_per_output_token_seconds`.",
        bounds=(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5),
    ): catalog.TOKEN_S,
    MetricSpec(
        name="vllm:request_time_per_output_token_seconds", kind="histogram", labels=_MODEL,
        help="Histogram of time per output token in seconds, by request.",
        runbook="The same under vLLM's newer name.",
    ): catalog.TOKEN_S,
    MetricSpec(
        name="vllm:e2e_request_latency_seconds", kind="histogram", labels=_MODEL,
        help="Histogram of end to end request latency in seconds.",
        runbook="As `openai_frontend_generation_duration_seconds`.",
        bounds=(1, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    ): catalog.ANSWER_S,
    MetricSpec(
        name="vllm:request_prompt_tokens", kind="histogram", labels=_MODEL,
        help="Number of prefill tokens processed.", runbook="As `openai_frontend_prompt_tokens`.",
    ): catalog.PROMPT_TOKENS,
    MetricSpec(
        name="vllm:request_generation_tokens", kind="histogram", labels=_MODEL,
        help="Number of generation tokens processed.",
        runbook="As `openai_frontend_generation_tokens`.",
    ): catalog.COMPLETION_TOKENS,
}  # fmt: skip

# vLLM's counter -> the sample of ours that holds it
COUNTERS = {
    MetricSpec(
        name="vllm:prompt_tokens", kind="counter", labels=_MODEL,
        help="Prefill tokens processed.", runbook="Its rate is the load of prompts.",
    ): f"{catalog.PROMPT_TOKENS.name}_sum",
    MetricSpec(
        name="vllm:generation_tokens", kind="counter", labels=_MODEL,
        help="Generation tokens processed.", runbook="Its rate is the throughput.",
    ): f"{catalog.COMPLETION_TOKENS.name}_sum",
    MetricSpec(
        name="vllm:prefix_cache_queries", kind="counter", labels=_MODEL,
        help="Prefix cache queries, in tokens.", runbook="What the hits are a share of.",
    ): f"{catalog.PROMPT_TOKENS.name}_sum",
    MetricSpec(
        name="vllm:prefix_cache_hits", kind="counter", labels=_MODEL,
        help="Prefix cache hits, in tokens.", runbook="As `openai_frontend_cached_prompt_tokens`.",
    ): f"{catalog.CACHED_TOKENS.name}_total",
    MetricSpec(
        name="vllm:prompt_tokens_cached", kind="counter", labels=_MODEL,
        help="Cached prompt tokens.", runbook="The same under vLLM's newer name.",
    ): f"{catalog.CACHED_TOKENS.name}_total",
}  # fmt: skip

SUCCESS = MetricSpec(
    name="vllm:request_success", kind="counter", labels=(*_MODEL, "finished_reason"),
    help="Requests that ended, by reason: stop, length, abort, error.",
    runbook="As `openai_frontend_generations`; `abort` is what its client cancelled.",
)  # fmt: skip
# How an answer ends in our words -> in vLLM's
FINISHED_REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}

BY_SOURCE = MetricSpec(
    name="vllm:prompt_tokens_by_source", kind="counter", labels=(*_MODEL, "source"),
    help="Prompt tokens by source: local_compute, local_cache_hit.",
    runbook="The share of the cache's hits: what the same prompts cost less.",
)  # fmt: skip

# The gateway sends each choice of `n` as a request of its own.
PARAMS_N = MetricSpec(
    name="vllm:request_params_n", kind="histogram", labels=_MODEL,
    help="Histogram of the n request parameter, as the engine gets it.",
    runbook="Always 1: each choice of `n` is a request of its own.", bounds=(1, 2, 5, 10, 20),
)  # fmt: skip

# What the engine says of itself
FROM_ENGINE = (
    MetricSpec(
        name="vllm:num_requests_running", kind="gauge", labels=_MODEL,
        help="Requests in the engine's batches.",
        runbook="At `max_num_seqs`: the batch is full, others wait.",
    ),
    MetricSpec(
        name="vllm:num_requests_waiting", kind="gauge", labels=_MODEL,
        help="Requests that wait to be scheduled.",
        runbook="The KV cache is full or `max_num_seqs` is reached: add machines, or limit the "
        "tokens of each request (`max_output_tokens`).",
    ),
    MetricSpec(
        name="vllm:kv_cache_usage_perc", kind="gauge", labels=_MODEL,
        help="The share of the KV cache that is in use; 1 is all of it.",
        runbook="Near 1, requests are preempted: lower `max_num_seqs`, or give the engine more "
        "memory.",
    ),
    MetricSpec(
        name="vllm:num_preemptions", kind="counter", labels=_MODEL,
        help="Requests that gave their place in the KV cache up, and began again later.",
        runbook="Work done twice: lower `max_num_seqs`, or give the engine more memory.",
    ),
    MetricSpec(
        name="vllm:num_requests_waiting_by_reason", kind="gauge", labels=(*_MODEL, "reason"),
        help="Those that wait, by reason: capacity, deferred.",
        runbook="`capacity`: see `vllm:num_requests_waiting`. `deferred`: the request waits for a "
        "grammar, for a slot for requests with a grammar, or for a LoRA slot (`max_loras`).",
    ),
    MetricSpec(
        name="vllm:inter_token_latency_seconds", kind="histogram", labels=_MODEL,
        help="Histogram of inter-token latency in seconds: the engine's time from step to step, "
        "for each request that goes on.",
        runbook="Grows with the batch. Far below the latency that clients measure: the gateway or "
        "the network lags.",
        bounds=(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10,
                20, 40, 80),
    ),
    MetricSpec(
        name="vllm:iteration_tokens_total", kind="histogram", labels=_MODEL,
        help="Histogram of number of tokens per engine step, of prompts and answers.",
        runbook="Often at `max_num_batched_tokens`: prompts hold answers up.",
        bounds=(1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    ),
    MetricSpec(
        name="vllm:lora_requests_info", kind="gauge",
        labels=(*_MODEL, "max_lora", "running_lora_adapters", "waiting_lora_adapters"),
        help="The adapters of requests that run and that wait; the value is the time, in seconds.",
        runbook="Adapters that wait while `max_lora` run: raise `max_loras`, or spread them over "
        "machines.",
    ),
    MetricSpec(
        name="vllm:cache_config_info", kind="gauge",
        labels=(*_MODEL, "block_size", "cache_dtype", "enable_prefix_caching",
                "gpu_memory_utilization", "num_gpu_blocks"),
        help="How the KV cache is made; the value is 1.",
        runbook="`block_size` times `num_gpu_blocks` is the tokens that fit.",
    ),
)  # fmt: skip

ALL = [*FROM_ENGINE, *HISTOGRAMS, *COUNTERS, SUCCESS, BY_SOURCE, PARAMS_N]
