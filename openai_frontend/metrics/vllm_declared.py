"""The families of vLLM's that the gateway tells for the models of its own vLLM engine, and where
their values are: in our own families, or in what the engine says of itself.

Names, labels and bounds are those of NVIDIA's vLLM backend (its README, "Triton Metrics"); what
that backend leaves out is named as in vLLM 0.32's own `/metrics`. Not told is what would have to be
measured for each token or step, such as vLLM's `inter_token_latency_seconds`.
"""

from openai_frontend.metrics import declared
from openai_frontend.metrics.family import Family

_MODEL = ("model", "version")

# vLLM's histogram -> ours that holds it. Bounds: those that are told; none stand for all of ours.
HISTOGRAMS = {
    Family(
        name="vllm:time_to_first_token_seconds", kind="histogram", labels=_MODEL,
        says="Histogram of time to first token in seconds.",
        hint="As `openai_frontend_time_to_first_token_seconds`.",
        bounds=tuple(bound for bound in declared.FIRST_TOKEN_S.bounds if bound <= 10),
    ): declared.FIRST_TOKEN_S,
    Family(
        name="vllm:time_per_output_token_seconds", kind="histogram", labels=_MODEL,
        says="Histogram of time per output token in seconds.",
        hint="As `openai_frontend_time_per_output_token_seconds`.",
        bounds=(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5),
    ): declared.TOKEN_S,
    Family(
        name="vllm:request_time_per_output_token_seconds", kind="histogram", labels=_MODEL,
        says="Histogram of time per output token in seconds, by request.",
        hint="The same under vLLM's newer name.",
    ): declared.TOKEN_S,
    Family(
        name="vllm:e2e_request_latency_seconds", kind="histogram", labels=_MODEL,
        says="Histogram of end to end request latency in seconds.",
        hint="As `openai_frontend_generation_seconds`.",
        bounds=(1, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    ): declared.ANSWER_S,
    Family(
        name="vllm:request_prompt_tokens", kind="histogram", labels=_MODEL,
        says="Number of prefill tokens processed.", hint="As `openai_frontend_prompt_tokens`.",
    ): declared.PROMPT_TOKENS,
    Family(
        name="vllm:request_generation_tokens", kind="histogram", labels=_MODEL,
        says="Number of generation tokens processed.",
        hint="As `openai_frontend_generation_tokens`.",
    ): declared.COMPLETION_TOKENS,
}  # fmt: skip

# vLLM's counter -> the sample of ours that holds it
COUNTERS = {
    Family(
        name="vllm:prompt_tokens", kind="counter", labels=_MODEL,
        says="Prefill tokens processed.", hint="Its rate is the load of prompts.",
    ): f"{declared.PROMPT_TOKENS.name}_sum",
    Family(
        name="vllm:generation_tokens", kind="counter", labels=_MODEL,
        says="Generation tokens processed.", hint="Its rate is the throughput.",
    ): f"{declared.COMPLETION_TOKENS.name}_sum",
    Family(
        name="vllm:prefix_cache_queries", kind="counter", labels=_MODEL,
        says="Prefix cache queries, in tokens.", hint="What the hits are a share of.",
    ): f"{declared.PROMPT_TOKENS.name}_sum",
    Family(
        name="vllm:prefix_cache_hits", kind="counter", labels=_MODEL,
        says="Prefix cache hits, in tokens.", hint="As `openai_frontend_cached_prompt_tokens`.",
    ): f"{declared.CACHED_TOKENS.name}_total",
    Family(
        name="vllm:prompt_tokens_cached", kind="counter", labels=_MODEL,
        says="Cached prompt tokens.", hint="The same under vLLM's newer name.",
    ): f"{declared.CACHED_TOKENS.name}_total",
}  # fmt: skip

SUCCESS = Family(
    name="vllm:request_success", kind="counter", labels=(*_MODEL, "finished_reason"),
    says="Requests that ended, by reason: stop, length, abort, error.",
    hint="As `openai_frontend_generations`; `abort` is what its client cancelled.",
)  # fmt: skip
# How an answer ends in our words -> in vLLM's
FINISHED_REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}

# The gateway sends each choice of `n` as a request of its own.
PARAMS_N = Family(
    name="vllm:request_params_n", kind="histogram", labels=_MODEL,
    says="Histogram of the n request parameter, as the engine gets it.",
    hint="Always 1: each choice of `n` is a request of its own.", bounds=(1, 2, 5, 10, 20),
)  # fmt: skip

# What the engine says of itself
FROM_ENGINE = (
    Family(
        name="vllm:num_requests_running", kind="gauge", labels=_MODEL,
        says="Requests in the engine's batches.",
        hint="At `max_num_seqs`: the batch is full, others wait.",
    ),
    Family(
        name="vllm:num_requests_waiting", kind="gauge", labels=_MODEL,
        says="Requests that wait to be scheduled.",
        hint="The cache is full or `max_num_seqs` is reached: more machines, or fewer tokens for "
        "each request (`max_answer_tokens`).",
    ),
    Family(
        name="vllm:kv_cache_usage_perc", kind="gauge", labels=_MODEL,
        says="The share of the KV cache that is in use; 1 is all of it.",
        hint="Near 1 requests are preempted: lower `max_num_seqs`, or give the engine more memory.",
    ),
    Family(
        name="vllm:num_preemptions", kind="counter", labels=_MODEL,
        says="Requests that gave their place in the KV cache up, and began again later.",
        hint="Work done twice: lower `max_num_seqs`, or give the engine more memory.",
    ),
)  # fmt: skip

ALL = [*FROM_ENGINE, *HISTOGRAMS, *COUNTERS, SUCCESS, PARAMS_N]
