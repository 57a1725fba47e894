"""Adapters as served models, named `base:adapter` for each name of the base.

The adapter's name alone also works if no other model or adapter has it.
"""

import json
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from openai_frontend.errors import ModelFailed, ModelNotFound
from openai_frontend.generation import Adapter
from openai_frontend.models import model_files
from openai_frontend.models.lora.catalog import LoRACatalog, LoRASources, ScanResult
from openai_frontend.models.lora.files import LoRARequirements
from openai_frontend.models.model_card import ModelCard
from openai_frontend.models.served_model import ServedModel
from openai_frontend.models.snapshot import LoadedModel, Snapshot
from openai_frontend.triton import Server

SEPARATOR = ":"


@dataclass(frozen=True, slots=True)
class LoRASnapshot:
    """All adapters of a server at one moment."""

    found: Mapping[str, ScanResult] = field(default_factory=dict)  # by the base's name in Triton
    unique: Mapping[str, str] = field(default_factory=dict)  # adapter -> its only base
    scan_cpu_s: float = 0.0  # CPU time that the scan took

    @property
    def bases(self) -> list[str]:
        """The models that support adapters."""
        return sorted(name for name, found in self.found.items() if found.possible)


class LoRAModels:
    """Finds the adapters of a server's models and serves each as a model."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._table = LoRACatalog()
        # The base and what serves the adapter, by the requests' name
        self._served: dict[str, tuple[ServedModel, ServedModel]] = {}

    def scan(self, snapshot: Snapshot, last: LoRASnapshot | None = None) -> LoRASnapshot:
        """Scan the folders of all bases: call it off the event loop, one scan at a time.

        `last`: the last scan of the same snapshot, whose results stay for models that cannot have
        adapters.
        """
        begun_s = time.thread_time()
        kept = {} if last is None else {n: s for n, s in last.found.items() if not s.possible}
        found = {
            name: kept.get(name)
            or self._table.scan(name, self._sources(loaded), _requirements(loaded.model))
            for name, loaded in _latest(snapshot).items()
        }
        known = {*snapshot.models, *snapshot.failures, *snapshot.refused, *snapshot.aliases}
        return LoRASnapshot(found, _unique(found, known), time.thread_time() - begun_s)

    def publish(self, adapters: LoRASnapshot) -> None:
        """Pass the adapters to the engines of this process."""
        self.forget()
        for name, found in adapters.found.items():
            self._server.set_adapters(name, found.adapters)

    def forget(self) -> None:
        """Free bases and adapters that are gone. Call on the event loop."""
        self._served.clear()

    def find(self, name: str, snapshot: Snapshot, adapters: LoRASnapshot) -> ServedModel | None:
        """The model with this name; None if the name cannot be an adapter's.

        Raises ModelNotFound if the base has no such adapter, ModelUnavailable if the adapter
        cannot serve.
        """
        base, adapter = _split(name, adapters)
        model = snapshot.models.get(base)
        if model is None:
            _check_base(name, snapshot.canonical(base), snapshot)
            return None
        scan = adapters.found.get(model.model_name, ScanResult())
        if adapter in scan.adapters:
            return self._adapted_model(name, model, scan.adapters[adapter])
        if adapter in scan.problems:
            raise ModelFailed(name, scan.problems[adapter])
        raise ModelNotFound(f"The model '{base}' has no adapter '{adapter[:128]}'.", param="model")

    def card(self, name: str, snapshot: Snapshot, adapters: LoRASnapshot) -> ModelCard | None:
        """The adapter's card, with the reason if it cannot serve. None as for `find`."""
        base, adapter = _split(name, adapters)
        model = snapshot.models.get(base)
        if (
            model is not None
            and adapter in adapters.found.get(model.model_name, ScanResult()).problems
        ):
            reason = adapters.found[model.model_name].problems[adapter]
            return ModelCard(name=name, created=0, ready=False, parent=base, error=reason)
        model_of_adapter = self.find(name, snapshot, adapters)
        return None if model_of_adapter is None else model_of_adapter.card()

    def cards(
        self,
        snapshot: Snapshot,
        adapters: LoRASnapshot,
        card_of: Callable[[ServedModel], ModelCard],
    ) -> list[ModelCard]:
        """One card for each adapter, under its base's own name. Those of a base differ only in
        `name` and `root`: `card_of` is asked for the first.
        """
        cards: list[ModelCard] = []
        for base, found in sorted(adapters.found.items()):
            if base not in snapshot.models or not found.adapters:
                continue
            names = sorted(found.adapters)
            name = f"{base}{SEPARATOR}{names[0]}"
            model = self._adapted_model(name, snapshot.models[base], found.adapters[names[0]])
            first = card_of(model)
            shared = {each.name: getattr(first, each.name) for each in fields(first)}
            for each in names:
                shared["name"], shared["root"] = f"{base}{SEPARATOR}{each}", each
                cards.append(ModelCard(**shared))
        return cards

    def unload(self, base: str, adapter: str) -> None:
        """Leave the adapter out of the following scans."""
        self._table.unload(base, adapter)

    def load(self, base: str, adapter: str) -> None:
        """Undo `unload` from the next scan on."""
        self._table.load(base, adapter)

    def _adapted_model(self, name: str, base: ServedModel, adapter: Adapter) -> ServedModel:
        of, model = self._served.get(name, (None, None))
        if model is not None and of is base and model.adapter is adapter:
            return model
        full = f"{base.model_name}{SEPARATOR}{adapter.name}"
        model = replace(
            base,
            name=name,
            adapter=adapter,
            alias_of=None if name == full else full,
            contracts=replace(base.contracts, embedding=None, score=None, classification=None),
        )
        self._served[name] = base, model
        return model

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
    """The latest version of each model, to which its name refers."""
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
    """Split a name into base and adapter. A name without a base must be a unique adapter."""
    if name in adapters.unique:
        return adapters.unique[name], name
    base, _, adapter = name.rpartition(SEPARATOR)
    return base, adapter


def _check_base(name: str, base: str, snapshot: Snapshot) -> None:
    """Raise ModelUnavailable if the adapter's base cannot serve."""
    if name != base and base in snapshot.failures:
        reason = f"its base model cannot serve: {snapshot.failures[base]}"
        raise ModelFailed(name, reason)


def _requirements(model: ServedModel) -> LoRARequirements | None:
    """Requirements for the model's adapters; None if it does not support LoRA."""
    if not model.supports("adapter"):
        return None
    if model.in_process:
        rank = model.facts.max_lora_rank
        size = _hidden_size(model)
        return (
            None if rank is None else LoRARequirements(kind="peft", max_rank=rank, hidden_size=size)
        )
    if model.supports("adapter_weights"):
        return LoRARequirements(kind="tensorrt_llm")
    return LoRARequirements(kind="peft" if model.supports("adapter_path") else None)


def _hidden_size(model: ServedModel) -> int | None:
    """From the config.json next to the tokenizer; None if it cannot be read."""
    folder = model.facts.tokenizer
    try:
        config = folder and json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # the engine will check it
        return None
    size = config.get("hidden_size") if isinstance(config, dict) else None
    return size if isinstance(size, int) else None
