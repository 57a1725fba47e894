"""A TensorRT-LLM engine with NVIDIA's five models. All but the ensemble keep NVIDIA's names,
which its BLS program uses; the ensemble has the name that requests use.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openai_frontend.cli.init_repo import tensorrt_llm_tables as tables
from openai_frontend.cli.init_repo.model import RepositoryModel, parameters, tensors
from openai_frontend.cli.init_repo.options import InvalidOption, RepositoryOptions
from openai_frontend.cli.init_repo.tensorrt_llm_engine import (
    MAX_LORA_RANK,
    EngineConfig,
    tokenizer_info,
)

_FAMILY = "inflight_batcher_llm"
_PREPROCESSING, _ENGINE, _POSTPROCESSING = "preprocessing", "tensorrt_llm", "postprocessing"
_BLS = "tensorrt_llm_bls"
_TOKENIZER_INFO = "1/xgrammar_tokenizer_info.json"
_LORA_FILES = ("model.lora_weights.npy", "model.lora_config.npy")
PARTS = (_PREPROCESSING, _ENGINE, _POSTPROCESSING, _BLS)

_MAX_BATCH_SIZE = 8  # default for engines without a limit, as in NVIDIA's examples

# Requests do not wait for others, and the queue is unbounded
_QUEUE = {
    "max_queue_delay_microseconds": 0,
    "default_queue_policy": {"max_queue_size": 0},
}

# The engine model's parameters that are not set by options: the defaults of the backend and of
# docs/model_config.md (triton-inference-server/tensorrtllm_backend). Empty values are unset. Two
# differ from the defaults: outputs exclude the prompt, and log probabilities are not normalized.
_DEFAULTS: Mapping[str, str] = {
    "max_beam_width": "1",
    "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
    "gpt_model_type": "inflight_fused_batching",
    "gpt_model_path": "",
    "encoder_model_path": "",
    "max_tokens_in_paged_kv_cache": "",
    "max_attention_window_size": "",
    "sink_token_length": "",
    "batch_scheduler_policy": "guaranteed_no_evict",
    "kv_cache_free_gpu_mem_fraction": "0.9",
    "cross_kv_cache_fraction": "",
    "kv_cache_host_memory_bytes": "0",
    "kv_cache_onboard_blocks": "true",
    "enable_trt_overlap": "false",
    "exclude_input_in_output": "true",
    "cancellation_check_period_ms": "100",
    "stats_check_period_ms": "100",
    "iter_stats_max_iterations": "1000",
    "request_stats_max_iterations": "0",
    "enable_kv_cache_reuse": "true",
    "normalize_log_probs": "false",
    "enable_chunked_context": "false",
    "gpu_device_ids": "",
    "participant_ids": "",
    "num_nodes": "1",
    "lora_cache_optimal_adapter_size": "8",
    "lora_cache_max_adapter_size": "64",
    "lora_cache_gpu_memory_fraction": "0.05",
    "lora_cache_host_memory_bytes": "1073741824",
    "lora_prefetch_dir": "",
    "decoding_mode": "",
    "executor_worker_path": "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker",
    "lookahead_window_size": "",
    "lookahead_ngram_size": "",
    "lookahead_verification_set_size": "",
    "medusa_choices": "",
    "eagle_choices": "",
    "gpu_weights_percent": "1.0",
    "enable_context_fmha_fp32_acc": "false",
    "multi_block_mode": "true",
    "cuda_graph_mode": "false",
    "cuda_graph_cache_size": "0",
    "speculative_decoding_fast_logits": "false",
    "tokenizer_dir": "",
    "guided_decoding_backend": "",
    "xgrammar_tokenizer_info_path": "",
}


def models(options: RepositoryOptions) -> list[RepositoryModel]:
    """The ensemble comes first: requests name it."""
    if options.name in PARTS:
        raise InvalidOption(
            "--name", f"'{options.name}' is the name of one of the ensemble's parts"
        )
    engine = EngineConfig(options.engine())
    size = _max_batch_size(options, engine)
    _check_loras(options, engine)
    return [
        _ensemble(options, engine, size),
        _bls(options, engine, size),
        _preprocessing(options, size),
        _engine_model(options, engine, size),
        _postprocessing(options, size),
    ]


def _max_batch_size(options: RepositoryOptions, engine: EngineConfig) -> int:
    built = engine.count("max_batch_size")
    if options.max_batch_size is None:
        return built or _MAX_BATCH_SIZE
    if built is not None and options.max_batch_size > built:
        raise InvalidOption(
            "--max-batch-size",
            f"the engine was built for {built}, not for {options.max_batch_size}",
        )
    return options.max_batch_size


def _check_loras(options: RepositoryOptions, engine: EngineConfig) -> None:
    """Adapters must have the files that TensorRT-LLM's conversion writes."""
    if options.loras and engine.max_lora_rank() is None:
        raise InvalidOption("--lora", f"the engine in {options.engine()} was built without LoRA")
    for name, path in options.loras.items():
        for file in _LORA_FILES:
            if not (path / file).is_file():
                raise InvalidOption(f"--lora {name}", f"{path} holds no {file}")


def _batching(size: int) -> dict[str, Any]:
    return {"preferred_batch_size": [size], **_QUEUE}


def _ensemble(options: RepositoryOptions, engine: EngineConfig, size: int) -> RepositoryModel:
    config = {
        "name": options.name,
        "platform": "ensemble",
        "max_batch_size": size,
        "input": tensors(tables.ENSEMBLE_INPUTS, engine.datatypes()),
        "output": tensors(tables.TEXT_OUTPUTS, engine.datatypes()),
        "ensemble_scheduling": {
            "step": [
                _step(_PREPROCESSING, tables.PREPROCESSING_MAPS),
                _step(_ENGINE, tables.ENGINE_MAPS),
                _step(_POSTPROCESSING, tables.POSTPROCESSING_MAPS),
            ]
        },
    }
    return RepositoryModel(name=options.name, config=config, options=_options(engine))


def _step(model: str, maps: Mapping[str, str]) -> dict[str, Any]:
    return {"model_name": model, "model_version": -1} | {
        side: dict(_pair(line) for line in table.splitlines() if line)
        for side, table in maps.items()
    }


def _pair(line: str) -> tuple[str, str]:
    """A tensor's name in the step and in the ensemble; one word if they are equal."""
    inner, _, outer = line.partition(" ")
    return inner, outer or inner


def _bls(options: RepositoryOptions, engine: EngineConfig, size: int) -> RepositoryModel:
    config = {
        "name": _BLS,
        "backend": "python",
        "max_batch_size": size,
        "model_transaction_policy": {"decoupled": options.decoupled},
        "input": tensors(tables.BLS_INPUTS, engine.datatypes()),
        "output": tensors(tables.TEXT_OUTPUTS, engine.datatypes()),
        "parameters": parameters(
            {
                "accumulate_tokens": "true",
                "tensorrt_llm_model_name": _ENGINE,
                "tensorrt_llm_draft_model_name": "",
                "multimodal_encoders_name": "",
            }
        ),
        # an instance handles one request at a time
        "instance_group": [{"count": max(size, options.instances), "kind": "KIND_CPU"}],
    }
    return RepositoryModel(
        name=_BLS,
        config=config,
        options=_options(engine),
        nvidia_folder=f"{_FAMILY}/{_BLS}",
        nvidia_files=("1/model.py", "1/lib/decode.py", "1/lib/triton_decoder.py"),
    )


def _preprocessing(options: RepositoryOptions, size: int) -> RepositoryModel:
    config = {
        "name": _PREPROCESSING,
        "backend": "python",
        "max_batch_size": size,
        "dynamic_batching": _batching(size),
        "input": tensors(tables.PREPROCESSING_INPUTS),
        "output": tensors(tables.PREPROCESSING_OUTPUTS),
        "parameters": parameters(
            {
                "tokenizer_dir": options.tokenizer,
                # the gateway omits the special tokens that the tokenizer adds to a chat
                "add_special_tokens": "true",
                "multimodal_model_path": "",
                "gpt_model_path": str(options.engine()),
                "max_num_images": "0",
                "hf_model_path": options.model,
            }
        ),
        "instance_group": [{"count": options.instances, "kind": "KIND_CPU"}],
    }
    return _around(_PREPROCESSING, config)


def _postprocessing(options: RepositoryOptions, size: int) -> RepositoryModel:
    config = {
        "name": _POSTPROCESSING,
        "backend": "python",
        "max_batch_size": size,
        "dynamic_batching": {},
        "input": tensors(tables.POSTPROCESSING_INPUTS),
        "output": tensors(tables.POSTPROCESSING_OUTPUTS),
        "parameters": parameters(
            {"tokenizer_dir": options.tokenizer, "skip_special_tokens": "true"}
        ),
        "instance_group": [{"count": options.instances, "kind": "KIND_CPU"}],
    }
    return _around(_POSTPROCESSING, config)


def _around(name: str, config: Mapping[str, Any]) -> RepositoryModel:
    return RepositoryModel(
        name=name,
        config=config,
        serves=False,
        nvidia_folder=f"{_FAMILY}/{name}",
        nvidia_files=("1/model.py",),
    )


def _engine_model(options: RepositoryOptions, engine: EngineConfig, size: int) -> RepositoryModel:
    values = {
        "gpt_model_path": str(options.engine()),
        "tokenizer_dir": options.tokenizer,
        "max_beam_width": str(engine.count("max_beam_width") or 1),
        "lora_cache_max_adapter_size": str(engine.max_lora_rank() or MAX_LORA_RANK),
    }
    if options.gpu_memory_utilization is not None:
        values["kv_cache_free_gpu_mem_fraction"] = str(options.gpu_memory_utilization)
    files = _guided_decoding(options)
    if files:
        path = options.repository.resolve() / _ENGINE / _TOKENIZER_INFO
        values |= {"guided_decoding_backend": "xgrammar", "xgrammar_tokenizer_info_path": str(path)}
    config = {
        "name": _ENGINE,
        "backend": "tensorrtllm",
        "max_batch_size": size,
        "model_transaction_policy": {"decoupled": options.decoupled},
        "dynamic_batching": _batching(size),
        "input": tensors(tables.ENGINE_INPUTS, engine.datatypes()),
        "output": tensors(tables.ENGINE_OUTPUTS, engine.datatypes()),
        "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
        "parameters": parameters({**_DEFAULTS, **values}),
    }
    return RepositoryModel(name=_ENGINE, config=config, serves=False, files=files)


def _guided_decoding(options: RepositoryOptions) -> dict[str, str]:
    """The tokenizer file for structured outputs; none for a tokenizer on a hub."""
    folder = options.tokenizer_folder()
    info = None if folder is None else tokenizer_info(Path(folder))
    return {} if info is None else {_TOKENIZER_INFO: info}


def _options(engine: EngineConfig) -> dict[str, Any]:
    length = engine.count("max_seq_len")
    return {} if length is None else {"max_model_len": length}
