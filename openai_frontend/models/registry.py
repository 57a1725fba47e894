"""Maps names to served models: what clients see of the model repository."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Literal, NoReturn

from openai_frontend.admission.queue import ANONYMOUS, ConcurrencyLimits, QueueKey
from openai_frontend.config.model_options import EVERY_MODEL, ModelOptions
from openai_frontend.errors import GatewayError, ModelFailed, ModelNotFound, ModelUnavailable
from openai_frontend.metrics.vllm import VLLMModel, vllm_gauges
from openai_frontend.model_facts import OTHER_BACKEND
from openai_frontend.models.lora.catalog import ScanResult
from openai_frontend.models.lora.models import SEPARATOR, LoRAModels, LoRASnapshot
from openai_frontend.models.model_card import ModelCard
from openai_frontend.models.model_use import ModelUse, OnDemand
from openai_frontend.models.served_model import ServedModel
from openai_frontend.models.snapshot import NOT_LOADED, Loader, Snapshot, SnapshotBuilder
from openai_frontend.triton import Server, engine_sleep
from openai_frontend.triton.model_control import ModelLocks

logger = logging.getLogger(__name__)

_LONGEST_NAME_IN_MESSAGES = 128
_LOADING = "it is loading"
_CORE_NOT_READY = "Triton's core is not ready; its log has the reason"
_NO_OPTIONS = ModelOptions()
_SCAN_SHARE = 0.0005  # of a core, for an idle server's scans of adapters


Absent = Literal["loading", "unloaded", "failed"]


def _card_of_unloaded(name: str, snapshot: Snapshot, reason: str, absent: Absent) -> ModelCard:
    """The card of a model that is loaded on demand: only its options are known."""
    model_name = snapshot.canonical(name)
    options = snapshot.options[model_name]
    return ModelCard(
        name=name,
        created=0,
        ready=False,
        facts=replace(
            OTHER_BACKEND,
            max_model_len=options.max_model_len,
            description=options.description,
        ),
        root=model_name,
        alias_of=None if name == model_name else model_name,
        capabilities=options.known_capabilities,
        error=reason,
        absent=absent,
        max_output_tokens=options.max_output_tokens,
        loads_on_demand=True,
    )


class ModelRegistry:
    """The models of a running server. `refresh` replaces the snapshot; it is never edited."""

    def __init__(
        self,
        server: Server,
        loader: Loader,
        *,
        options: Mapping[str, ModelOptions] | None = None,  # settings by model; "*": all
        strict_readiness: bool = True,  # one unready model makes the server unready
    ) -> None:
        self._server = server
        self._loader = loader
        self.uses = loader.uses
        self.cache_salts = loader.cache_salts
        self._options = dict(options or {})
        self._snapshot_builder = SnapshotBuilder(server, loader, self._options)
        self._strict_readiness = strict_readiness
        self.locks = ModelLocks()
        self._lock = asyncio.Lock()
        self._snapshot: Snapshot | None = None  # None until the first refresh
        self._lora_models = LoRAModels(server)
        self._adapters = LoRASnapshot()
        self._scanned: Snapshot | None = None  # whose adapters these are
        self._every_on_demand = False
        self.loading_at_start: set[str] = set()  # not ready before all have been tried
        self._failed_loads: dict[str, str] = {}  # why; the core's index may have nothing
        # Awaited by `refresh` before it publishes the models
        self.on_refresh: list[Callable[[], Awaitable[None]]] = []
        # Copies a model from object storage before the core reads its files
        self.copy_from_bucket: Callable[[str], Awaitable[None]] | None = None

    async def refresh(self, *, reloaded: str | None = None) -> None:
        """Read the server's index. Tokenizers are loaded in a thread.

        `reloaded` names a model whose files are read even if they seem unchanged, and whose
        adapters' weights are sent again.
        """
        async with self._lock:
            before = self._snapshot
            known = before or Snapshot()
            if reloaded is not None:
                known = known.without(reloaded)
            now = await asyncio.to_thread(self._snapshot_builder.build, known)
            if before is None:
                self._warn_of_unknown_models(now)
            await self._scan_adapters(now)
            for prepare in self.on_refresh:
                await prepare()
            self._snapshot = now
            self._lora_models.forget()  # what requests have asked for meanwhile

    async def refresh_adapters(self) -> None:
        """Scan the adapters' folders. Running requests keep their adapters."""
        async with self._lock:
            await self._scan_adapters(self._current())

    async def load_adapter(self, base: str, adapter: str) -> None:
        """Load an adapter that was unloaded, or that is new since the last scan."""
        self._lora_models.load(base, adapter)
        await self.refresh_adapters()

    async def unload_adapter(self, base: str, adapter: str) -> None:
        """Unload an adapter. Running requests keep it."""
        self._lora_models.unload(base, adapter)
        await self.refresh_adapters()

    def adapters(self, base: str) -> ScanResult:
        """The model's adapters at the last scan."""
        return self._adapters.found.get(base, ScanResult())

    def adapter_bases(self) -> list[str]:
        """The names of the models that support adapters."""
        return self._adapters.bases

    async def watch_adapters(self, every_s: float) -> None:
        """Scan forever: adapters may change in every model control mode. Thousands of adapters
        are scanned less often, so that an idle server's scans take a bounded share of a core.
        """
        while True:
            if self._adapters.bases or self._scanned is not self._snapshot:
                await asyncio.sleep(max(every_s, self._adapters.scan_cpu_s / _SCAN_SHARE))
                await self.refresh_adapters()
            else:
                await self._server.heartbeat.next(every_s)

    async def _scan_adapters(self, snapshot: Snapshot) -> None:
        last = self._adapters if self._scanned is snapshot else None
        try:
            self._adapters = await asyncio.to_thread(self._lora_models.scan, snapshot, last)
            self._scanned = snapshot
        except OSError as error:  # the folder may come back
            logger.warning("scanning the adapters failed: %s", error)
        self._lora_models.publish(self._adapters)

    async def watch(self, every_s: float) -> None:
        """Refresh forever, for servers that poll their repository."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.refresh()
            except GatewayError as error:  # the repository may come back
                logger.warning("refreshing the models failed: %s", error.message)

    async def load(
        self,
        name: str,
        *,
        config: str | None = None,
        model_files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Load or reload a model (explicit mode only). Raises Triton's reason if it fails.

        `config` and `model_files` override the repository's. Meanwhile the old model serves
        requests. Raises Conflict if the model is being loaded or unloaded.
        """
        with self.locks.hold(name):
            try:
                if not model_files:
                    await self.update_files(name)
                await self._server.load_model(name, config=config, model_files=model_files)
                self.uses[name].restart_idle_time()
                self._failed_loads.pop(name, None)
            except GatewayError as error:
                self._failed_loads[name] = error.message
                raise
            finally:
                await self.refresh(reloaded=name)

    async def update_files(self, name: str) -> None:
        """Copy the model if a bucket has it. Raises ModelUnavailable if it cannot be copied."""
        if self.copy_from_bucket is not None:
            await self.copy_from_bucket(name)

    async def unload(self, name: str, *, dependents: bool = True) -> None:
        """Unload a model after its requests, and wait until it is gone (explicit mode only).

        `dependents`: also unload an ensemble's composing models, unless another ensemble has them.
        Raises Conflict if the model is being loaded or unloaded.
        """
        with self.locks.hold(name, unloading=True):
            try:
                for each in (
                    name,
                    *(self._current().exclusive_composing_models(name) if dependents else ()),
                ):
                    await self._server.unload_model(each)
            finally:
                await self.refresh()

    async def ensure_loaded(self, name: str, queue_key: QueueKey | None = ANONYMOUS) -> None:
        """Load the named model, or the base of a named adapter, if models are loaded on demand.

        The caller waits for the load by `queue_key`, or in no queue if it is None. Unknown and
        unserved names are ignored: `get` rejects them.
        """
        if self.uses.demand is not None and (model_name := self._loadable(name)) is not None:
            await self.uses.demand.ensure_loaded(model_name, queue_key)

    async def ensure_awake(self, name: str, queue_key: QueueKey) -> None:
        """Wake the named model, or the base of a named adapter, if memory is made for it by sleep
        or unloads of others. The caller waits as in `ensure_loaded`.
        """
        if self.uses.demand is not None and (model_name := self._loadable(name)) is not None:
            await self.uses.demand.ensure_awake(model_name, queue_key)

    def loading_together(
        self, names: Collection[str], queue_key: QueueKey
    ) -> AbstractAsyncContextManager[None]:
        """Enter it to load and wake several models for one request. Raises ModelUnavailable if
        they cannot be loaded beside each other, QueueFull or QueueTimeout if other requests load
        several.
        """
        if self.uses.demand is None:
            return nullcontext()
        loadable = {each for name in names if (each := self._loadable(name)) is not None}
        return self.uses.demand.loading_together(loadable, queue_key)

    def _loadable(self, name: str) -> str | None:
        """The Triton name of a model, or of an adapter's base; None for unknown and unserved
        names.
        """
        snapshot = self._current()
        model_name = snapshot.model_name(name)
        if model_name not in snapshot.options:
            model_name = snapshot.model_name(name.rpartition(SEPARATOR)[0])
        is_served = model_name in snapshot.options and model_name not in snapshot.refused
        return model_name if is_served else None

    def unloaded_capabilities(self, name: str) -> frozenset[str] | None:
        """Capabilities by the options of a model that a request would load, or of the base of an
        adapter; None for other models and names.
        """
        model_name = self._loadable(name)
        if model_name is None or self.is_loaded(model_name) or not self.loads_on_demand(model_name):
            return None
        return self.options(model_name).known_capabilities

    def enable_on_demand(self, demand: OnDemand, *, every_model: bool = True) -> None:
        """Load models on demand from now on: every model, or those whose options say so."""
        self.uses.demand = demand
        self._every_on_demand = every_model

    def loads_on_demand(self, name: str) -> bool:
        """Whether a request for the model loads it."""
        if self.uses.demand is None:
            return False
        return self._every_on_demand or self.options(name).is_loaded_by_requests

    def is_loaded(self, name: str) -> bool:
        """Whether the model is loaded and not being unloaded."""
        return name in self._current().loaded and not self.locks.is_unloading(name)

    def loaded(self) -> frozenset[str]:
        """The loaded models, without composing models of loaded ensembles."""
        snapshot = self._current()
        return snapshot.loaded - snapshot.ensembles_of.keys()

    def loaded_in_core(self) -> frozenset[str]:
        """All models loaded in Triton's core; empty before the first refresh."""
        return frozenset() if self._snapshot is None else self._snapshot.loaded

    def ensembles_of(self, name: str) -> Sequence[str]:
        """The loaded ensembles that contain the model."""
        return () if self._snapshot is None else self._snapshot.ensembles_of.get(name, ())

    def composing_models_of(self, name: str) -> Sequence[str]:
        """The composing models of a loaded ensemble; empty for other models."""
        parts = {} if self._snapshot is None else self._snapshot.ensembles_of
        return [part for part, wholes in parts.items() if name in wholes]

    def snapshot_id(self) -> object:
        """An object that is replaced by each refresh; None before the first."""
        return self._snapshot

    def options(self, name: str) -> ModelOptions:
        """The operator's options for a model."""
        return self._current().options.get(name, _NO_OPTIONS)

    def moderation_fails_open(self, name: str) -> bool:
        """Whether chats continue if the model, under any of its names, cannot moderate them."""
        moderation = self.options(self._current().model_name(name)).moderation
        return moderation is not None and moderation.fail_open

    def concurrency_limits(self, name: str) -> ConcurrencyLimits:
        """The operator's concurrency limits for a model."""
        return self.options(name).concurrency_limits

    def sleep_obstacle(self, name: str) -> str | None:
        """Why the model cannot sleep; None if it can. Raises ModelNotFound or ModelFailed."""
        return self._known(name).facts.sleep_obstacle

    def able_to_sleep(self) -> list[str]:
        """The Triton names of the loaded models that can sleep, sorted."""
        models = self._current().models.values()
        return sorted({each.model_name for each in models if each.facts.sleep_obstacle is None})

    async def next_heartbeat(self) -> None:
        """Return at the next periodic check."""
        await self._server.heartbeat.next()

    def state(self, name: str) -> str:
        """The model's state in Triton: LOADING or UNLOADING if one of its versions is."""
        states = {entry.state for entry in self._server.model_index() if entry.name == name}
        order = ("LOADING", "UNLOADING", "READY", "UNAVAILABLE")
        return next((state for state in order if state in states), "UNKNOWN")

    def load_phase(self, name: str) -> str | None:
        """The phase of the model's load; None if it is unknown or no load runs."""
        return self._server.load_phases().get(name)

    def use(self, name: str) -> ModelUse:
        """The counter of a Triton model's requests, which keeps it loaded."""
        return self.uses[name]

    def get(self, name: str) -> ServedModel:
        """The model, ready to serve. The only place that reports unknown models."""
        model = self._known(name)
        if not model.is_ready():
            self._server.health.check(model.model_name, called=name)
            raise ModelFailed(name, str(model.failure()))
        return model

    def card(self, name: str) -> ModelCard:
        """The model's card, with the reason if it cannot serve."""
        snapshot = self._current()
        canonical = snapshot.canonical(name)
        if self._is_on_demand(name, snapshot):
            return self._unloaded(name, snapshot)
        for reasons in (snapshot.failures, snapshot.refused):
            if (reason := reasons.get(name, reasons.get(canonical))) is not None:
                absent: Absent = "unloaded" if reason == NOT_LOADED else "failed"
                return ModelCard(
                    name=name,
                    created=0,
                    ready=False,
                    error=self._reason(canonical, reason),
                    absent="loading" if self.locks.is_loading(canonical) else absent,
                )
        if name not in snapshot.models:
            adapter = self._lora_models.card(name, snapshot, self._adapters)
            if adapter is not None:
                return adapter
        return self._card(self._known(name))

    def cards(self) -> list[ModelCard]:
        """The models that requests can name, sorted by name.

        Without models that failed to load, that no endpoint serves, and composing models. With
        unloaded models if models are loaded on demand.
        """
        snapshot = self._current()
        models = [snapshot.models[name] for name in snapshot.listed]
        cards = [self._card(model) for model in models]
        cards += self._lora_models.cards(snapshot, self._adapters, self._card)
        return cards + [self._unloaded(name, snapshot) for name in self._on_demand(snapshot)]

    def _card(self, model: ServedModel) -> ModelCard:
        card, name = model.card(), model.model_name
        if card.ready and engine_sleep.is_sleeping(name):
            return replace(card, present="loading" if name in self.locks else "sleeping")
        if card.ready or not self.locks.is_unloading(name):
            return card
        return replace(card, absent="unloaded", error=NOT_LOADED)

    def _unloaded(self, name: str, snapshot: Snapshot) -> ModelCard:
        """The card of a model that a request would load, or that one loads now."""
        canonical = snapshot.canonical(name)
        absent: Absent = "loading" if self.locks.is_loading(canonical) else "unloaded"
        return _card_of_unloaded(name, snapshot, self._reason(canonical, NOT_LOADED), absent)

    def tensor_models(self) -> list[str]:
        """The loaded models that no endpoint of OpenAI's API serves, without composing models."""
        snapshot = self._current()
        return sorted(
            name
            for name in snapshot.refused.keys() & snapshot.loaded
            if not snapshot.ensembles_of.get(name) and not snapshot.options[name].ensemble
        )

    def engine_gauges(self) -> list[dict[str, float]]:
        """The gauges of each in-process engine, named as in `Server.model_gauges`."""
        snapshot = self._snapshot or Snapshot()
        gauges = (self._server.model_gauges(*version) for version in snapshot.loaded_models)
        return [each for each in gauges if each]

    def vllm_models(self) -> list[VLLMModel]:
        """The models of the in-process vLLM engine, with their metrics."""
        snapshot = self._snapshot or Snapshot()
        return [
            VLLMModel(
                model=model,
                version=str(version),
                gauges=vllm_gauges(self._server.model_gauges(model, version)),
                samples=self._server.model_samples(model, version),
            )
            for (model, version), loaded in snapshot.loaded_models.items()
            if loaded.model.facts.owned_by == "vllm"
        ]

    def has_loaded(self) -> bool:
        """True once the models are known, even if some cannot serve."""
        return self._snapshot is not None

    def is_starting(self) -> bool:
        """Whether models of the start still load."""
        return not self.has_loaded() or bool(self.loading_at_start)

    def is_ready(self) -> bool:
        """True once the models are known and the server and all engines are ready."""
        if self.is_starting():
            return False
        if not self._server.is_ready() and not self._only_unloads():
            return False
        return not self._strict_readiness or not self.unready()

    def unready(self) -> dict[str, str]:
        """Model -> why it cannot serve. Models that were not loaded are not included."""
        if self._snapshot is None:
            return self._loading(self._server.load_phases())
        failures = {
            name: reason for name, reason in self._snapshot.failures.items() if reason != NOT_LOADED
        }
        dead = {name: self._server.any_failure(name) for name in self._snapshot.loaded}
        failures |= {name: reason for name, reason in dead.items() if reason is not None}
        loading = self._loading(self.loading_at_start)
        return failures | self._server.unready_models() | loading or self._unready_core()

    def _unready_core(self) -> dict[str, str]:
        """The reason why the core is unready if every loaded model is ready."""
        if self._server.is_ready() or not self._server.is_live():  # it has stopped
            return {}
        if self._only_unloads():
            return {}
        states = {entry.name: entry.state for entry in self._server.model_index()}
        loading = self._loading(name for name, state in states.items() if state == "LOADING")
        # A model without a version makes the core unready, and is not in its index
        failed = {name: why for name, why in self._failed_loads.items() if name not in states}
        return loading or failed or {EVERY_MODEL: _CORE_NOT_READY}

    def _only_unloads(self) -> bool:
        """Whether the core may be unready only because a model is being unloaded."""
        changing = {
            entry.name
            for entry in self._server.model_index()
            if entry.state in ("LOADING", "UNLOADING")
        }
        return self.locks.any_unloading() and all(map(self.locks.is_unloading, changing))

    def _reason(self, name: str, reason: str) -> str:
        """The reason why the model cannot serve, or that it is being loaded."""
        return self._loading([name])[name] if self.locks.is_loading(name) else reason

    def _loading(self, names: Iterable[str]) -> dict[str, str]:
        """With what each model does at the moment, if it is known."""
        phases = self._server.load_phases()
        return {
            name: f"{_LOADING}: {phase}" if (phase := phases.get(name)) else _LOADING
            for name in names
        }

    def close(self) -> None:
        """Stop the loader's threads."""
        self._loader.close()

    def _on_demand(self, snapshot: Snapshot) -> list[str]:
        """The names of models that a request would load."""
        unloaded = snapshot.unloaded() if self.uses.demand is not None else ()
        return [name for name in unloaded if self.loads_on_demand(snapshot.canonical(name))]

    def _is_on_demand(self, name: str, snapshot: Snapshot) -> bool:
        canonical = snapshot.canonical(name)
        is_unloaded = snapshot.failures.get(canonical) == NOT_LOADED
        return is_unloaded and canonical in snapshot.options and self.loads_on_demand(canonical)

    def _current(self) -> Snapshot:
        if self._snapshot is None:
            raise ModelUnavailable("The models are still loading.")
        return self._snapshot

    def _known(self, name: str) -> ServedModel:
        snapshot = self._current()
        model = snapshot.models.get(name)
        if model is None:
            model = self._lora_models.find(name, snapshot, self._adapters)
        return model if model is not None else self._missing(snapshot, name)

    def _missing(self, snapshot: Snapshot, name: str) -> NoReturn:
        canonical = snapshot.canonical(name)
        base = canonical.partition("@")[0]
        for known in (name, canonical, base):
            if known in snapshot.failures:
                raise ModelFailed(name, snapshot.failures[known])
            if known in snapshot.refused:
                reason = snapshot.refused[known]
                raise ModelNotFound(f"The model '{name}' is not served: {reason}.", param="model")
        shown = name[:_LONGEST_NAME_IN_MESSAGES]
        raise ModelNotFound(f"The model '{shown}' does not exist.", param="model")

    def _warn_of_unknown_models(self, snapshot: Snapshot) -> None:
        known = {EVERY_MODEL} | snapshot.options.keys() | snapshot.failures.keys()
        for name in self._options.keys() - known:
            for option in sorted(self._options[name].model_fields_set):
                logger.warning("%s: the model '%s' does not exist", option, name)
