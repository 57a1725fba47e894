"""What to use instead of flags of `vllm serve` and llama.cpp's `llama-server`."""

_WEIGHTS = "pass MODEL without a flag: openai-frontend serve ORG/MODEL, or a folder"
_ADAPTERS = (
    "use --engine-arg enable_lora=true, and --model-option NAME:adapters=ADAPTER=FOLDER "
    "(docs/lora.md)"
)
_NOT_NEEDED = "not needed: "
_SAMPLING = "set it in requests; for a default, use --engine-arg override_generation_config={...}"

# Flags for vLLM's engine arguments with other names
_ENGINE_ARGUMENTS = {
    # vLLM
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
    "-q": "quantization",
    # llama.cpp
    "-c": "max_model_len",
    "--ctx-size": "max_model_len",
    "-np": "max_num_seqs",
    "--parallel": "max_num_seqs",
    "-b": "max_num_batched_tokens",
    "--batch-size": "max_num_batched_tokens",
    "-s": "seed",
    "-ctk": "kv_cache_dtype",
    "--cache-type-k": "kv_cache_dtype",
    "-ctv": "kv_cache_dtype",
    "--cache-type-v": "kv_cache_dtype",
    "-ts": "tensor_parallel_size",
    "--tensor-split": "tensor_parallel_size",
}  # fmt: skip
# Engine arguments whose flag has the same name
_SAME_ARGUMENTS = (
    "additional_config", "async_scheduling", "attention_backend", "block_size",
    "compilation_config", "config_format", "convert", "cpu_offload_gb", "data_parallel_size",
    "device_ids", "disable_log_stats", "distributed_executor_backend", "download_dir", "dtype",
    "enable_chunked_prefill", "enable_expert_parallel", "enable_lora", "enable_prefix_caching",
    "enforce_eager", "generation_config", "gpu_memory_utilization", "hf_overrides", "hf_token",
    "kv_cache_dtype", "kv_cache_memory_bytes", "kv_transfer_config", "load_format",
    "logits_processors", "lora_dtype", "max_cpu_loras", "max_logprobs", "max_lora_rank",
    "max_loras", "max_model_len", "max_num_batched_tokens", "max_num_seqs", "model_impl",
    "model_loader_extra_config", "num_gpu_blocks_override", "optimization_level",
    "override_generation_config", "pipeline_parallel_size", "pooler_config", "quantization",
    "revision", "runner", "scheduling_policy", "seed", "skip_tokenizer_init",
    "speculative_config", "structured_outputs_config", "tensor_parallel_size", "tokenizer",
    "tokenizer_mode", "tokenizer_revision", "trust_remote_code",
)  # fmt: skip

_OTHER = {
    # vLLM
    "--model": _WEIGHTS,
    "--tool-parser-plugin": "use --tool-call-parser package.module:Class (docs/tools.md)",
    "--enable-auto-tool-choice": _NOT_NEEDED + "tool calls work if the template has them",
    "--enable-reasoning": _NOT_NEEDED + "reasoning is parsed if the model's template has it",
    "--lora-modules": _ADAPTERS,
    "--ssl-keyfile": "use --tls-key",
    "--ssl-certfile": "use --tls-certificate",
    "--ssl-ca-certs": "use --tls-client-ca",
    "--uds": "use --unix-socket",
    "--allowed-origins": "use --cors-origins",
    "--uvicorn-log-level": "use --log-level",
    "--enable-log-requests": "use --access-log",
    "--disable-log-requests": _NOT_NEEDED + "requests are logged only with --access-log",
    "--disable-uvicorn-access-log": _NOT_NEEDED + "requests are logged only with --access-log",
    "--enable-request-id-headers": _NOT_NEEDED + "each response has x-request-id",
    "--enable-prompt-tokens-details": _NOT_NEEDED + "each usage has prompt_tokens_details",
    "--max-num-queued-reqs": "use --max-queue-size",
    "--sse-keep-alive-interval": "use --sse-ping-interval-s",
    "--shutdown-timeout": "use --graceful-shutdown-timeout-s",
    "--otlp-traces-endpoint": "use --otlp-endpoint",
    # llama.cpp
    "-m": _WEIGHTS,
    "--hf-repo": _WEIGHTS,
    "-a": "use --served-model-name",
    "--alias": "use --served-model-name",
    "-ngl": _NOT_NEEDED + "vLLM puts the whole model on the GPU",
    "--gpu-layers": _NOT_NEEDED + "vLLM puts the whole model on the GPU",
    "--n-gpu-layers": _NOT_NEEDED + "vLLM puts the whole model on the GPU",
    "-t": "set the environment variable OMP_NUM_THREADS",
    "--threads": "set the environment variable OMP_NUM_THREADS",
    "-n": "use --model-option NAME:max_output_tokens=...",
    "--predict": "use --model-option NAME:max_output_tokens=...",
    "--n-predict": "use --model-option NAME:max_output_tokens=...",
    "--temp": _SAMPLING,
    "--top-k": _SAMPLING,
    "--top-p": _SAMPLING,
    "--min-p": _SAMPLING,
    "--jinja": _NOT_NEEDED + "the model's own template is always rendered",
    "--chat-template-file": "use --chat-template",
    "--reasoning-format": "use --reasoning-parser",
    "--api-key-file": "use --keys-file (docs/authentication.md)",
    "--ssl-key-file": "use --tls-key",
    "--ssl-cert-file": "use --tls-certificate",
    "-to": "use --request-timeout-s",
    "--timeout": "use --request-timeout-s",
    "--embedding": "use --engine-arg runner=pooling",
    "--embeddings": "use --engine-arg runner=pooling",
    "--reranking": "use --engine-arg runner=pooling",
    "--lora": _ADAPTERS,
    "--models-dir": "use --model-repository",
    "--models-max": "use --max-loaded-models",
    "-v": "use --log-level debug",
    "--verbose": "use --log-level debug",
}  # fmt: skip


def hint(flag: str) -> str | None:
    """What to use instead of the flag; None for an unknown flag."""
    flag = flag.replace("_", "-")
    if (advice := _OTHER.get(flag)) is not None:
        return advice
    name = flag.removeprefix("--").replace("-", "_")
    switch, off = name.removeprefix("no_"), name.startswith("no_")
    argument = _ENGINE_ARGUMENTS.get(flag) or (switch if switch in _SAME_ARGUMENTS else None)
    if argument is None:
        return None
    return f"use --engine-arg {argument}={'false' if off else '...'} (with 'serve MODEL')"
