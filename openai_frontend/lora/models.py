"""Adapters as models: `base:adapter`, by every name of the base, and the adapter's name alone where
it is nobody else's.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from openai_frontend.errors import ModelFailed, ModelNotFound
from openai_frontend.generation import Adapter
from openai_frontend.lora.catalog import LoRACatalog, ScanResult
from openai_frontend.lora.files import LoRARequirements
from openai_frontend.lora.sources import LoRASources
from openai_frontend.lora.weights_upload import WeightsUploader
from openai_frontend.models import model_files
from openai_frontend.models.loader import LoadedModel
from openai_frontend.models.served_model import ModelCard, ServedModel
from openai_frontend.models.snapshot import Snapshot
from openai_frontend.triton import Server

SEPARATOR = ":"


@dataclass(frozen=True, slots=True)
class LoRASnapshot:
    """What adapters there are at one moment."""

    found: Mapping[str, ScanResult] = field(default_factory=dict)  # by the base's name in Triton
    unique: Mapping[str, str] = field(default_factory=dict)  # adapter -> the one base that has it

    @property
    def bases(self) -> list[str]:
        """The models that take adapters."""
        return sorted(name for name, found in self.found.items() if found.possible)


class LoRAModels:
    """Finds the adapters of a server's models, and makes models of them."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._table = LoRACatalog()
        self._uploaders: dict[str, WeightsUploader] = {}

    def scan(self, snapshot: Snapshot) -> LoRASnapshot:
        """Read every base's folders: off the event loop, one look at a time."""
        found = {
            name: self._table.scan(name, self._sources(loaded), _requirements(loaded.model))
            for name, loaded in _latest(snapshot).items()
        }
        known = {*snapshot.models, *snapshot.failures, *snapshot.refused, *snapshot.aliases}
        return LoRASnapshot(found, _unique(found, known))

    def publish(self, adapters: LoRASnapshot) -> None:
        """Let the engines of this process know."""
        for name, found in adapters.found.items():
            self._server.set_adapters(name, found.adapters)

    def find(self, name: str, snapshot: Snapshot, adapters: LoRASnapshot) -> ServedModel | None:
        """The model of this name; None where no adapter could be meant.

        Raises ModelNotFound where the base has no such adapter, ModelUnavailable where the adapter
        cannot serve.
        """
        base, adapter = _split(name, adapters)
        model = snapshot.models.get(base)
        if model is None:
            _check_base(name, snapshot.canonical(base), snapshot)
            return None
        found = adapters.found.get(model.model_name, ScanResult())
        if adapter in found.adapters:
            return self._adapted_model(name, model, found.adapters[adapter])
        if adapter in found.problems:
            raise ModelFailed(name, found.problems[adapter])
        raise ModelNotFound(f"The model '{base}' has no adapter '{adapter[:128]}'.", param="model")

    def card(self, name: str, snapshot: Snapshot, adapters: LoRASnapshot) -> ModelCard | None:
        """What is known of an adapter; of one that cannot serve, why. None as of `find`."""
        base, adapter = _split(name, adapters)
        model = snapshot.models.get(base)
        if (
            model is not None
            and adapter in adapters.found.get(model.model_name, ScanResult()).problems
        ):
            reason = adapters.found[model.model_name].problems[adapter]
            return ModelCard(
                name=name, created=0, owned_by="triton", ready=False, parent=base, error=reason
            )
        found = self.find(name, snapshot, adapters)
        return None if found is None else found.card()

    def listed(self, snapshot: Snapshot, adapters: LoRASnapshot) -> list[ServedModel]:
        """One for each adapter, by its base's own name."""
        return [
            self._adapted_model(f"{base}{SEPARATOR}{name}", snapshot.models[base], adapter)
            for base, found in sorted(adapters.found.items())
            if base in snapshot.models
            for name, adapter in sorted(found.adapters.items())
        ]

    def unload(self, base: str, adapter: str) -> None:
        """Leave the adapter out from the next look on."""
        self._table.unload(base, adapter)

    def load(self, base: str, adapter: str) -> None:
        """Take it up again at the next look."""
        self._table.load(base, adapter)

    def _adapted_model(self, name: str, base: ServedModel, adapter: Adapter) -> ServedModel:
        told = None
        if base.supports("adapter_weights"):
            told = self._uploaders.setdefault(base.model_name, WeightsUploader())
        full = f"{base.model_name}{SEPARATOR}{adapter.name}"
        return replace(
            base,
            name=name,
            adapter=adapter,
            weights_uploader=told,
            alias_of=None if name == full else full,
            embedding_contract=None,
            score_contract=None,
        )

    def _sources(self, loaded: LoadedModel) -> LoRASources:
        model, options = loaded.model, loaded.options
        repositories = self._server.options.model_repositories
        return LoRASources(
            model_folder=model_files.model_folder(model.model_name, repositories),
            version=model.version,
            named=options.adapters,
            watched=options.adapter_folder,
        )


def _latest(snapshot: Snapshot) -> dict[str, LoadedModel]:
    """The version of each model that goes by its name."""
    return {
        name: snapshot.loaded_models[name, version]
        for name, version in sorted(snapshot.loaded_models)
        if name in snapshot.models
    }


def _unique(found: Mapping[str, ScanResult], known: Collection[str]) -> dict[str, str]:
    bases: dict[str, list[str]] = {}
    for base, each in found.items():
        for name in each.adapters:
            bases.setdefault(name, []).append(base)
    return {
        name: having[0] for name, having in bases.items() if len(having) == 1 and name not in known
    }


def _split(name: str, adapters: LoRASnapshot) -> tuple[str, str]:
    """Base and adapter. A name without a base is that of the base that alone has the adapter."""
    if name in adapters.unique:
        return adapters.unique[name], name
    base, _, adapter = name.rpartition(SEPARATOR)
    return base, adapter


def _check_base(name: str, base: str, snapshot: Snapshot) -> None:
    """Raise ModelUnavailable where the base of an adapter cannot serve."""
    if name != base and base in snapshot.failures:
        reason = f"its base cannot: {snapshot.failures[base]}"
        raise ModelFailed(name, reason)


def _requirements(model: ServedModel) -> LoRARequirements | None:
    """What adapters the model takes; None where it takes none."""
    if not model.supports("adapter"):
        return None
    if "max_lora_rank" in model.facts:  # an engine of this process says it
        rank = model.facts["max_lora_rank"]
        size = _hidden_size(model)
        return (
            None if rank is None else LoRARequirements(kind="peft", max_rank=rank, hidden_size=size)
        )
    if model.supports("adapter_weights"):
        return LoRARequirements(kind="tensorrt_llm")
    return LoRARequirements(kind="peft" if model.supports("adapter_path") else None)


def _hidden_size(model: ServedModel) -> int | None:
    """As the config beside the tokenizer says it."""
    folder = model.facts.get("tokenizer")
    try:
        config = folder and json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # then the engine finds out
        return None
    size = config.get("hidden_size") if isinstance(config, dict) else None
    return size if isinstance(size, int) else None
