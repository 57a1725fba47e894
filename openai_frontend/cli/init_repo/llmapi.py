"""TensorRT-LLM's LLM API behind the python backend: model.yaml holds the arguments of its `LLM`."""

from typing import Any

import yaml

from openai_frontend.cli.init_repo.model import RepositoryModel, parameters, tensors
from openai_frontend.cli.init_repo.options import RepositoryOptions
from openai_frontend.cli.init_repo.vllm import highest_rank

# triton_backend/all_models/llmapi/tensorrt_llm/config.pbtxt of NVIDIA/TensorRT-LLM
_INPUTS = """
text_input STRING -1
image_url STRING -1 optional
streaming BOOL 1 optional
sampling_param_best_of INT32 1 optional
sampling_param_temperature FP32 1 optional
sampling_param_top_k INT32 1 optional
sampling_param_top_p FP32 1 optional
sampling_param_frequency_penalty FP32 1 optional
sampling_param_presence_penalty FP32 1 optional
sampling_param_max_tokens INT32 1 optional
sampling_param_stop STRING -1 optional
sampling_param_seed UINT64 1 optional
sampling_param_exclude_input_from_output BOOL 1 optional
sampling_param_return_perf_metrics BOOL 1 optional
return_finish_reason BOOL 1 optional
return_stop_reason BOOL 1 optional
return_cumulative_logprob BOOL 1 optional
stop BOOL 1 optional
lora_id UINT64 1 optional
lora_name STRING 1 optional
lora_path STRING 1 optional
lora_ckpt_source STRING 1 optional
"""
_OUTPUTS = """
text_output STRING -1
finish_reason STRING -1
stop_reason STRING -1
cumulative_logprob FP32 -1
kv_cache_reused_block INT32 -1
kv_cache_missed_block INT32 -1
kv_cache_alloc_new_blocks INT32 -1
kv_cache_alloc_total_blocks INT32 -1
kv_cache_hit_rate FP32 -1
arrival_time_ns INT64 1
first_scheduled_time_ns INT64 1
first_token_time_ns INT64 1
last_token_time_ns INT64 1
acceptance_rate FP32 1
total_accepted_draft_tokens INT32 1
total_draft_tokens INT32 1
"""


def models(options: RepositoryOptions) -> list[RepositoryModel]:
    """One model. Its batch size and whether it is decoupled stand in model.yaml: NVIDIA's program
    reads them there, and sets them when the model is loaded.
    """
    config: dict[str, Any] = {
        "name": options.name,
        "backend": "python",
        "input": tensors(_INPUTS),
        "output": tensors(_OUTPUTS),
        "instance_group": [{"count": options.instances, "kind": "KIND_CPU"}],
    }
    if options.instances > 1:  # each instance needs its own GPUs
        config["parameters"] = parameters({"gpu_device_ids": _gpus(options)})
    return [
        RepositoryModel(
            name=options.name,
            config=config,
            files={"1/model.yaml": yaml.safe_dump(_arguments(options), sort_keys=False)},
            nvidia_folder="llmapi/tensorrt_llm",
            nvidia_files=("1/model.py", "1/helpers.py"),
        )
    ]


def _gpus(options: RepositoryOptions) -> str:
    """GPUs in the program's notation: "0,1;2,3" are two instances of two GPUs each."""
    each = options.tensor_parallel_size
    return ";".join(
        ",".join(str(gpu) for gpu in range(first, first + each))
        for first in range(0, each * options.instances, each)
    )


def _arguments(options: RepositoryOptions) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "model": options.model,
        "tokenizer": options.tokenizer,
        "backend": "pytorch",
        "tensor_parallel_size": options.tensor_parallel_size,
        "pipeline_parallel_size": 1,
    }
    optional = {
        "dtype": options.dtype,
        "max_seq_len": options.max_model_len,
        "max_batch_size": options.max_batch_size,
    }
    arguments |= {name: value for name, value in optional.items() if value is not None}
    if options.gpu_memory_utilization is not None:
        share = {"free_gpu_memory_fraction": options.gpu_memory_utilization}
        arguments["kv_cache_config"] = share
    if options.loras:
        count = len(options.loras)
        arguments["enable_lora"] = True
        arguments["lora_config"] = {
            "lora_dir": [str(path) for path in options.loras.values()],
            "max_lora_rank": highest_rank(options),
            "max_loras": count,
            "max_cpu_loras": count,
        }
    # Triton's own: the program takes no batches, and streams only where it is decoupled
    arguments["triton_config"] = {"max_batch_size": 0, "decoupled": options.decoupled}
    return arguments
