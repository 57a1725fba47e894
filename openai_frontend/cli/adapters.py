"""The LoRA adapters of a model that does not run: which requests could name, and what is wrong."""

from openai_frontend.adapters.folder import Taken
from openai_frontend.adapters.places import Places
from openai_frontend.adapters.table import AdapterTable
from openai_frontend.cli.model_directory import ModelDirectory
from openai_frontend.contracts.contract import Contract
from openai_frontend.models.adapter_models import SEPARATOR

_VLLM_MAX_RANK = 16  # where model.json does not say it


def of(folder: ModelDirectory, contract: Contract) -> tuple[list[str], list[str]]:
    """Names by which requests ask for them, and a sentence for each that could not serve."""
    places = Places(
        model_folder=folder.path,
        version=max(folder.versions),
        named=folder.options.adapters,
        watched=folder.options.adapter_folder,
    )
    found = AdapterTable().look(folder.name, places, _taken(folder, contract))
    return (
        [f"{folder.name}{SEPARATOR}{name}" for name in found.adapters],
        [f"Its adapter '{name}' cannot serve: {why}." for name, why in found.problems.items()],
    )


def _taken(folder: ModelDirectory, contract: Contract) -> Taken | None:
    """What adapters the model takes; an engine in this process is asked for them in model.json."""
    if not contract.supports("adapter"):
        return None
    if folder.engine is not None:
        rank = folder.arguments.get("max_lora_rank", _VLLM_MAX_RANK)
        on = str(folder.arguments.get("enable_lora", False)).lower() == "true"
        return Taken(kind="peft", max_rank=rank) if on else None
    if contract.supports("adapter_weights"):
        return Taken(kind="tensorrt_llm")
    return Taken(kind="peft" if contract.supports("adapter_path") else None)
