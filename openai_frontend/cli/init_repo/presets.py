"""The models of each kind of repository, with their openai_frontend.yaml."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from openai_frontend.cli.init_repo import llmapi, vllm
from openai_frontend.cli.init_repo.model import RepositoryModel
from openai_frontend.cli.init_repo.options import RepositoryOptions

_MODELS: Mapping[str, Callable[[RepositoryOptions], list[RepositoryModel]]] = {
    "inprocess": vllm.inprocess,
    "vllm": vllm.nvidias,
    "llmapi": llmapi.models,
}


def models(options: RepositoryOptions) -> list[RepositoryModel]:
    """The models of the kind. Raises InvalidOption."""
    return [_completed(options, model) for model in _MODELS[options.kind](options)]


def _aliases(options: RepositoryOptions) -> dict[str, Any]:
    """Further served names, or else the name on the hub."""
    if options.served_names:
        others = [name for name in dict.fromkeys(options.served_names) if name != options.name]
        return {"aliases": others} if others else {}
    on_hub = options.folder is None and options.model != options.name
    return {"aliases": [options.model]} if on_hub else {}


def _completed(options: RepositoryOptions, model: RepositoryModel) -> RepositoryModel:
    """Adds aliases, and what in-process engines report themselves: tokenizer, context length,
    LoRA.
    """
    values = _aliases(options)
    if options.kind == "inprocess":
        return replace(model, options={**values, **model.options})
    values["contract"] = options.kind
    if (folder := options.tokenizer_folder()) is not None:
        values["tokenizer"] = folder
    if options.loras and options.kind != "vllm":  # it reads multi_lora.json
        values["adapters"] = {name: str(path) for name, path in options.loras.items()}
    if options.max_model_len is not None:
        values["max_model_len"] = options.max_model_len
    return replace(model, options={**model.options, **values})
