"""The models of each kind of repository, with their openai_frontend.yaml."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from openai_frontend.cli.init_repo import llmapi, tensorrt_llm, vllm
from openai_frontend.cli.init_repo.model import RepositoryModel
from openai_frontend.cli.init_repo.options import RepositoryOptions

_MODELS: Mapping[str, Callable[[RepositoryOptions], list[RepositoryModel]]] = {
    "inprocess": vllm.inprocess,
    "vllm": vllm.nvidias,
    "tensorrt_llm": tensorrt_llm.models,
    "llmapi": llmapi.models,
}


def models(wanted: RepositoryOptions) -> list[RepositoryModel]:
    """All models of the kind; requests name the first. Raises InvalidOption."""
    first, *others = _MODELS[wanted.kind](wanted)
    first = replace(first, options={**_aliases(wanted), **first.options})
    return [_completed(wanted, model) for model in (first, *others)]


def _aliases(wanted: RepositoryOptions) -> dict[str, Any]:
    """Further served names, or else the name on the hub."""
    if wanted.served_names:
        others = [name for name in dict.fromkeys(wanted.served_names) if name != wanted.name]
        return {"aliases": others} if others else {}
    on_hub = wanted.folder is None and wanted.model != wanted.name
    return {"aliases": [wanted.model]} if on_hub else {}


def _completed(wanted: RepositoryOptions, model: RepositoryModel) -> RepositoryModel:
    """Adds what in-process engines report themselves: tokenizer, context length, LoRA."""
    if not model.serves or wanted.kind == "inprocess":
        return model
    said: dict[str, Any] = {"contract": wanted.kind}
    if (folder := wanted.tokenizer_folder()) is not None:
        said["tokenizer"] = folder
    if wanted.loras and wanted.kind != "vllm":  # it reads multi_lora.json
        said["adapters"] = {name: str(path) for name, path in wanted.loras.items()}
    if wanted.max_model_len is not None:
        said["max_model_len"] = wanted.max_model_len
    return replace(model, options={**model.options, **said})
