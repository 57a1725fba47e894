"""Names to served models. What clients see of the repository; replaced whole, never edited."""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai_frontend.contracts.contract import Contract
from openai_frontend.contracts.vllm import VLLMContract
from openai_frontend.errors import GatewayError, ModelNotFound, ModelUnavailable
from openai_frontend.prompting import chat_template, tokenizer
from openai_frontend.prompting.pool import PromptPool
from openai_frontend.prompting.prompt import PromptBuilder
from openai_frontend.served_model import ModelCard, ServedModel
from openai_frontend.triton import ModelIndexEntry, Server

logger = logging.getLogger(__name__)

# What Triton's index gives as reason for a model that nothing is wrong with
_NOT_LOADED = {"": "it is not loaded", "unloaded": "it is not loaded"}

_LONGEST_NAME_IN_MESSAGES = 128


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Every model at one moment: those that serve, and why the others do not."""

    models: Mapping[str, ServedModel] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)


class ModelRegistry:
    """The models of a running server. `refresh` reads the server's index and swaps the snapshot."""

    def __init__(
        self,
        server: Server,
        *,
        chat_template: str | None = None,  # name or path; replaces every model's own
        tokenizer_threads: int = 2,
        tokenizer_queue: int = 256,
        strict_readiness: bool = True,  # one model that cannot serve makes the server unready
    ) -> None:
        self._server = server
        self._chat_template = chat_template
        self._pool = PromptPool(threads=tokenizer_threads, queue=tokenizer_queue)
        self._strict_readiness = strict_readiness
        self._lock = asyncio.Lock()
        self._snapshot: _Snapshot | None = None  # None until the first refresh

    async def refresh(self) -> None:
        """Follow the server's index; tokenizers are read in a thread, the loop goes on."""
        async with self._lock:
            before = self._snapshot or _Snapshot()
            self._snapshot = await asyncio.to_thread(self._take_snapshot, before)

    async def follow(self, every_s: float) -> None:
        """Refreshes for ever: where the server polls its repository, models come and go."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.refresh()
            except GatewayError as error:  # a repository that is away comes back
                logger.warning("the models could not be looked at: %s", error.message)

    async def load(self, name: str) -> None:
        """Load or reload a model; raises Triton's reason where it fails (explicit mode only)."""
        try:
            await self._server.load_model(name)
        finally:
            await self.refresh()

    async def unload(self, name: str) -> None:
        """Unload a model and wait until it is gone (explicit mode only)."""
        try:
            await self._server.unload_model(name)
        finally:
            await self.refresh()

    def get(self, name: str) -> ServedModel:
        """The model, ready to serve. The only place that says that a model does not exist."""
        snapshot = self._current()
        model = snapshot.models.get(name)
        if model is None:
            raise self._absent(name, snapshot)
        if not self._server.model_is_ready(name):
            raise ModelUnavailable(f"The model '{name}' cannot serve: {model.failure()}")
        return model

    def card(self, name: str) -> ModelCard:
        """What is known of a model; of one that failed, why."""
        snapshot = self._current()
        if name in snapshot.models:
            return snapshot.models[name].card()
        if name in snapshot.failures:
            reason = snapshot.failures[name]
            return ModelCard(name=name, created=0, owned_by="triton", ready=False, error=reason)
        raise self._absent(name, snapshot)

    def cards(self) -> list[ModelCard]:
        """The models that were loaded, by name; a model that failed to load is not among them."""
        return [model.card() for _, model in sorted(self._current().models.items())]

    def has_loaded(self) -> bool:
        """True once the models are known, whether or not each of them can serve."""
        return self._snapshot is not None

    def is_ready(self) -> bool:
        """True once the models are known and the server, with all its engines, is ready."""
        if not self.has_loaded() or not self._server.is_ready():
            return False
        return not self._strict_readiness or not self.unready()

    def unready(self) -> dict[str, str]:
        """Model -> why it cannot serve; a model that nobody asked to load is no trouble."""
        if self._snapshot is None:
            return {}
        failures = {
            name: reason
            for name, reason in self._snapshot.failures.items()
            if reason not in _NOT_LOADED.values()
        }
        dead = {name: self._server.model_failure(name) for name in self._snapshot.models}
        return failures | {name: reason for name, reason in dead.items() if reason is not None}

    def close(self) -> None:
        """End the threads that build prompts."""
        self._pool.close()

    def _current(self) -> _Snapshot:
        if self._snapshot is None:
            raise ModelUnavailable("The models are still loading.")
        return self._snapshot

    def _absent(self, name: str, snapshot: _Snapshot) -> GatewayError:
        if name in snapshot.failures:
            return ModelUnavailable(f"The model '{name}' cannot serve: {snapshot.failures[name]}")
        shown = name[:_LONGEST_NAME_IN_MESSAGES]
        return ModelNotFound(f"The model '{shown}' does not exist.", param="model")

    def _take_snapshot(self, before: _Snapshot) -> _Snapshot:
        models: dict[str, ServedModel] = {}
        failures: dict[str, str] = {}
        for name, reason in _reasons(self._server.model_index()).items():
            try:
                if reason is not None:
                    raise ModelUnavailable(reason)
                models[name] = self._served(name, before.models.get(name))
            except GatewayError as error:
                failures[name] = error.message
                _log_failure(name, error.message, before)
        return _Snapshot(models, failures)

    def _served(self, name: str, known: ServedModel | None) -> ServedModel:
        facts = self._server.model_facts(name)
        if known is not None and known.facts is facts:  # each load makes new facts
            return known
        return ServedModel(
            name=name,
            created=int(time.time()),
            facts=facts,
            contract=_contract(self._server.model_config(name), facts),
            prompts=self._prompts(facts),
            pool=self._pool,
            server=self._server,
        )

    def _prompts(self, facts: Mapping[str, Any]) -> PromptBuilder | None:
        folder = facts.get("tokenizer")
        if folder is None:
            return None
        own = self._chat_template
        return PromptBuilder(
            tokenizer.load(Path(folder)),
            chat_template=None if own is None else chat_template.read(own),
            max_model_len=facts.get("max_model_len"),
        )


def _reasons(index: Iterable[ModelIndexEntry]) -> dict[str, str | None]:
    """Model -> why it cannot serve; None where a version of it is ready."""
    reasons: dict[str, str | None] = {}
    for entry in index:
        if entry.state == "READY":
            reasons[entry.name] = None
        else:
            reasons.setdefault(entry.name, _NOT_LOADED.get(entry.reason, entry.reason))
    return reasons


def _contract(config: Mapping[str, Any], facts: Mapping[str, Any]) -> Contract | None:
    """The contract that the declared tensors speak, if any."""
    outputs = {tensor["name"] for tensor in config.get("output", ())}
    if "generate" not in facts.get("tasks", ["generate"]) or "text_output" not in outputs:
        return None
    return VLLMContract(config)


def _log_failure(name: str, reason: str, before: _Snapshot) -> None:
    """Once for each new reason; a model that nobody has loaded is no failure."""
    if reason not in _NOT_LOADED.values() and before.failures.get(name) != reason:
        logger.error("model %s cannot serve: %s", name, reason)
