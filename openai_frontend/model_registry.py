"""Names to served models. What clients see of the repository; replaced whole, never edited."""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai_frontend.contracts import choice
from openai_frontend.contracts.choice import Chosen
from openai_frontend.errors import GatewayError, ModelNotFound, ModelUnavailable
from openai_frontend.model_reading import (
    ModelFiles,
    ParserSettings,
    choose,
    template_for_tools,
    warning,
)
from openai_frontend.parsing.reading import PLAIN, Reading
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
    parts: Mapping[str, str] = field(default_factory=dict)  # composing model -> its ensemble
    configs: Mapping[str, Any] = field(default_factory=dict)  # of the models that serve
    served: frozenset[str] = frozenset()  # the models that have a task of ours

    def listed(self) -> list[ServedModel]:
        """Those that requests are meant to name, by name."""
        return [
            model
            for name, model in sorted(self.models.items())
            if name in self.served and name not in self.parts
        ]


class ModelRegistry:
    """The models of a running server. `refresh` reads the server's index and swaps the snapshot."""

    def __init__(
        self,
        server: Server,
        *,
        chat_templates: Mapping[str, str] | None = None,  # model -> name or path; "*" for all
        parsers: ParserSettings | None = None,
        tokenizer_threads: int = 2,
        tokenizer_queue: int = 256,
        strict_readiness: bool = True,  # one model that cannot serve makes the server unready
    ) -> None:
        self._server = server
        self._chat_templates = dict(chat_templates or {})
        self._parsers = parsers or ParserSettings()
        self._pool = PromptPool(threads=tokenizer_threads, queue=tokenizer_queue)
        self._strict_readiness = strict_readiness
        self._lock = asyncio.Lock()
        self._snapshot: _Snapshot | None = None  # None until the first refresh

    async def refresh(self) -> None:
        """Follow the server's index; tokenizers are read in a thread, the loop goes on."""
        async with self._lock:
            before = self._snapshot
            now = await asyncio.to_thread(self._take_snapshot, before or _Snapshot())
            if before is None:
                self._warn_of_unknown_models(now)
            self._snapshot = now

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
        model = self._known(name)
        if not self._server.model_is_ready(name):
            raise ModelUnavailable(f"The model '{name}' cannot serve: {model.failure()}")
        return model

    def card(self, name: str) -> ModelCard:
        """What is known of a model; of one that failed, why."""
        reason = self._current().failures.get(name)
        if reason is not None:
            return ModelCard(name=name, created=0, owned_by="triton", ready=False, error=reason)
        return self._known(name).card()

    def cards(self) -> list[ModelCard]:
        """The models that requests can name, by name.

        Not among them: what failed to load, what has no task of ours, the parts of an ensemble.
        """
        return [model.card() for model in self._current().listed()]

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

    def _known(self, name: str) -> ServedModel:
        snapshot = self._current()
        model = snapshot.models.get(name)
        if model is not None and name in snapshot.served:
            return model
        if name in snapshot.failures:
            raise ModelUnavailable(f"The model '{name}' cannot serve: {snapshot.failures[name]}")
        if model is None:
            shown = name[:_LONGEST_NAME_IN_MESSAGES]
            raise ModelNotFound(f"The model '{shown}' does not exist.", param="model")
        ensemble = snapshot.parts.get(name)
        why = f"it is a part of '{ensemble}'" if ensemble else "its tensors are for no request here"
        raise ModelNotFound(f"The model '{name}' is not served: {why}.", param="model")

    def _warn_of_unknown_models(self, snapshot: _Snapshot) -> None:
        by_model = {"chat_template": self._chat_templates, **self._parsers.by_model()}
        known = {"*"} | snapshot.models.keys() | snapshot.failures.keys()
        for setting, values in by_model.items():
            for name in values.keys() - known:
                logger.warning("%s: there is no model '%s'", setting, name)

    def _take_snapshot(self, before: _Snapshot) -> _Snapshot:
        models: dict[str, ServedModel] = {}
        failures: dict[str, str] = {}
        parts: dict[str, str] = {}
        configs: dict[str, Any] = {}
        for name, reason in _reasons(self._server.model_index()).items():
            try:
                if reason is not None:
                    raise ModelUnavailable(reason)
                config = configs[name] = self._server.model_config(name)
                known = before.models.get(name) if before.configs.get(name) == config else None
                models[name] = self._served(name, config, known)
                parts.update(dict.fromkeys(_steps(config), name))
            except GatewayError as error:
                failures[name] = error.message
                _log_failure(name, error.message, before)
        served = frozenset(name for name, model in models.items() if model.tasks)
        return _Snapshot(models, failures, parts, configs, served)

    def _served(
        self, name: str, config: Mapping[str, Any], known: ServedModel | None
    ) -> ServedModel:
        """A new model, unless it is known under the same config and has the same facts."""
        facts = self._server.model_facts(name)
        if known is not None and known.facts is facts:  # each load of an engine makes new ones
            return known
        chosen = _chosen(config, facts)
        prompts, files = self._prompts(name, facts)
        return ServedModel(
            name=name,
            created=int(time.time()),
            facts=facts,
            contract=chosen.generation,
            embedding_contract=chosen.embedding,
            score_contract=chosen.score,
            prompts=prompts,
            reading=self._reading(name, files) if chosen.generation else PLAIN,
            pool=self._pool,
            server=self._server,
        )

    def _prompts(
        self, name: str, facts: Mapping[str, Any]
    ) -> tuple[PromptBuilder | None, ModelFiles | None]:
        """How the model is asked, and what its files say of its answers; None where no tokenizer
        is known.
        """
        if facts.get("tokenizer") is None:
            return None, None
        folder = Path(facts["tokenizer"])
        loaded = tokenizer.load(folder)
        template = self._chat_template(name)
        prompts = PromptBuilder(
            loaded, chat_template=template, max_model_len=facts.get("max_model_len")
        )
        in_use = template or template_for_tools(loaded.chat_templates)
        return prompts, ModelFiles(folder=folder, chat_template=in_use)

    def _reading(self, name: str, files: ModelFiles | None) -> Reading:
        if files is None or files.chat_template is None:
            return PLAIN  # it does not chat, and texts that it completes are not read
        reading = choose(files, self._parsers.of(name))
        _log_reading(name, reading, warning(reading, files))
        return reading

    def _chat_template(self, name: str) -> str | None:
        """The template that the settings give the model; None: the tokenizer's own."""
        chosen = self._chat_templates.get(name, self._chat_templates.get("*"))
        if chosen is None:
            return None
        try:
            return chat_template.read(chosen)
        except ModelUnavailable as error:
            raise ModelUnavailable(f"its chat template {chosen}: {error.message}") from error


def _reasons(index: Iterable[ModelIndexEntry]) -> dict[str, str | None]:
    """Model -> why it cannot serve; None where a version of it is ready."""
    reasons: dict[str, str | None] = {}
    for entry in index:
        if entry.state == "READY":
            reasons[entry.name] = None
        else:
            reasons.setdefault(entry.name, _NOT_LOADED.get(entry.reason, entry.reason))
    return reasons


def _chosen(config: Mapping[str, Any], facts: Mapping[str, Any]) -> Chosen:
    """The model's contracts; none of them where its tensors are for no request here."""
    try:
        return choice.choose(config, tasks=facts.get("tasks"))
    except ModelUnavailable as error:
        return Chosen(name="none", because=error.message)


def _steps(config: Mapping[str, Any]) -> list[str]:
    """The models that an ensemble is made of; none for other models."""
    steps = config.get("ensemble_scheduling", {}).get("step", ())
    return [step["model_name"] for step in steps]


def _log_reading(name: str, reading: Reading, lacking: str) -> None:
    because = " ".join(reading.because)
    logger.info("model %s: answers are read as %s. %s", name, reading.name, because)
    if lacking:
        logger.warning("model %s: %s", name, lacking)


def _log_failure(name: str, reason: str, before: _Snapshot) -> None:
    """Once for each new reason; a model that nobody has loaded is no failure."""
    if reason not in _NOT_LOADED.values() and before.failures.get(name) != reason:
        logger.error("model %s cannot serve: %s", name, reason)
