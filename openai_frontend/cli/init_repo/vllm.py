"""vLLM in this process or in NVIDIA's backend: model.json contains its engine arguments."""

import importlib
import json
from collections.abc import Mapping
from typing import Any

from openai_frontend.cli.init_repo.model import RepositoryModel, parameters, tensors
from openai_frontend.cli.init_repo.options import InvalidOption, RepositoryOptions, read_json

# src/model.py of triton-inference-server/vllm_backend, auto_complete_config
_INPUTS = """
text_input STRING 1
image STRING -1 optional
stream BOOL 1 optional
sampling_parameters STRING 1 optional
exclude_input_in_output BOOL 1 optional
return_finish_reason BOOL 1 optional
return_cumulative_logprob BOOL 1 optional
return_logprobs BOOL 1 optional
return_num_input_tokens BOOL 1 optional
return_num_output_tokens BOOL 1 optional
embedding_request STRING 1 optional
"""
_OUTPUTS = """
text_output STRING -1
finish_reason STRING -1
cumulative_logprob FP32 -1
logprobs STRING -1
num_input_tokens UINT32 1
num_output_tokens UINT32 -1
"""

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # valid values of max_lora_rank in vLLM


def inprocess(options: RepositoryOptions) -> list[RepositoryModel]:
    """The engine runs in the gateway's process and has more tensors than NVIDIA's backend."""
    config = {
        "name": options.name,
        "backend": "inprocess",
        "max_batch_size": 0,
        "parameters": parameters({"engine": "vllm"}),
        "instance_group": [{"count": 1, "kind": "KIND_MODEL"}],
    }
    return [_model(options, completed_inprocess(config))]


def nvidias(options: RepositoryOptions) -> list[RepositoryModel]:
    """The engine runs in the python backend's stub process."""
    config = {
        "name": options.name,
        "backend": "vllm",
        "max_batch_size": 0,
        "model_transaction_policy": {"decoupled": True},
        "parameters": parameters({"REPORT_CUSTOM_METRICS": "true"}),
        "instance_group": [_instances(options)],
    }
    return [_model(options, completed_nvidias(config))]


def completed_inprocess(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with all tensors of an in-process model."""
    # by name, as the backend itself does: nothing depends on engines
    module = importlib.import_module("openai_frontend.engines.tensors")
    completed: dict[str, Any] = module.completed_config(dict(config))
    return completed


def completed_nvidias(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the tensors that NVIDIA's backend adds on load."""
    return {
        **config,
        "max_batch_size": 0,
        "model_transaction_policy": {"decoupled": True},
        "input": _with(config.get("input", []), tensors(_INPUTS)),
        "output": _with(config.get("output", []), tensors(_OUTPUTS)),
    }


def _with(declared: list[dict[str, Any]], table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = {tensor["name"] for tensor in declared}
    return declared + [tensor for tensor in table if tensor["name"] not in names]


def _instances(options: RepositoryOptions) -> dict[str, Any]:
    """One instance on all visible GPUs, or several with one GPU each."""
    if options.instances == 1:
        return {"count": 1, "kind": "KIND_MODEL"}
    if options.tensor_parallel_size > 1:
        raise InvalidOption(
            "--instances", "NVIDIA's vLLM backend has no instances with several GPUs each"
        )
    return {"count": 1, "kind": "KIND_GPU", "gpus": list(range(options.instances))}


def _model(options: RepositoryOptions, config: dict[str, Any]) -> RepositoryModel:
    files = {"1/model.json": _json(engine_arguments(options))}
    if options.loras:
        paths = {name: str(path) for name, path in options.loras.items()}
        files["1/multi_lora.json"] = _json(paths)
    return RepositoryModel(name=options.name, config=config, files=files)


def engine_arguments(options: RepositoryOptions) -> dict[str, Any]:
    """For model.json, with vLLM's names."""
    arguments: dict[str, Any] = {
        "model": options.model,
        "tokenizer": options.tokenizer,
        "tensor_parallel_size": options.tensor_parallel_size,
    }
    optional = {
        "dtype": options.dtype,
        "max_model_len": options.max_model_len,
        "gpu_memory_utilization": options.gpu_memory_utilization,
        "max_num_seqs": options.max_batch_size,
    }
    arguments |= {name: value for name, value in optional.items() if value is not None}
    if options.kind == "vllm":  # the source of its metrics
        arguments["disable_log_stats"] = False
    if options.loras:
        rank = min(each for each in (*_RANKS, 10**6) if each >= highest_rank(options))
        arguments |= {
            "enable_lora": True,
            "max_loras": len(options.loras),
            "max_lora_rank": rank,
        }
    return {**arguments, **options.engine_arguments}


def highest_rank(options: RepositoryOptions) -> int:
    """The highest rank in the adapters' PEFT adapter_config.json."""
    ranks = []
    for name, path in options.loras.items():
        rank = read_json(f"--lora {name}", path / "adapter_config.json").get("r")
        if not isinstance(rank, int) or rank < 1:
            raise InvalidOption(f"--lora {name}", f"{path}/adapter_config.json has no rank 'r'")
        ranks.append(rank)
    return max(ranks)


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"
