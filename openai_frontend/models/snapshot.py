"""An immutable snapshot of all models of a server, by each of their names."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from openai_frontend.config import model_options
from openai_frontend.config.model_options import ModelOptions
from openai_frontend.errors import GatewayError, ModelUnavailable
from openai_frontend.model_facts import ModelFacts
from openai_frontend.models import model_files
from openai_frontend.models.model_use import ModelUses
from openai_frontend.models.served_model import ServedModel
from openai_frontend.prefix_cache.salts import CacheSalts
from openai_frontend.triton import ModelIndexEntry, Server

logger = logging.getLogger(__name__)

NOT_LOADED = "it is not loaded"

# Reasons in Triton's index for models without a problem
_NOTHING_WRONG = {"": NOT_LOADED, "unloaded": NOT_LOADED}

LATEST = -1  # Triton's number for the latest version


class Unservable(ModelUnavailable):
    """The model works, but no endpoint serves it; the message says why."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A served model with its inputs: if those are unchanged, it is reused."""

    config: Mapping[str, Any]
    engine_facts: ModelFacts | None  # None: another backend
    options: ModelOptions
    model: ServedModel

    def is_unchanged(
        self, config: Mapping[str, Any], engine_facts: ModelFacts | None, options: ModelOptions
    ) -> bool:
        """Facts are compared by identity: each load of an engine creates new ones, maybe equal."""
        same_load = self.engine_facts is engine_facts
        return same_load and self.config == config and self.options == options


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Models by name, alias and version (`model@2`)."""

    models: Mapping[str, ServedModel] = field(default_factory=dict)  # that requests may name
    failures: Mapping[str, str] = field(default_factory=dict)  # name -> why it cannot serve
    refused: Mapping[str, str] = field(default_factory=dict)  # name -> why no endpoint serves it
    aliases: Mapping[str, str] = field(default_factory=dict)  # also of models that cannot serve
    listed: Sequence[str] = ()  # sorted
    loaded: frozenset[str] = frozenset()  # in Triton, for whatever purpose
    loaded_models: Mapping[tuple[str, int], LoadedModel] = field(default_factory=dict)
    options: Mapping[str, ModelOptions] = field(default_factory=dict)  # if they can be read
    ensembles_of: Mapping[str, Sequence[str]] = field(
        default_factory=dict
    )  # composing model -> its loaded ensembles
    clashes: frozenset[str] = frozenset()  # unassigned aliases: a model has that name

    def without(self, model_name: str) -> "Snapshot":
        """A snapshot without this model, and without the ensembles that it is a part of."""
        left_out = {model_name, *self.ensembles_of.get(model_name, ())}
        kept = {key: each for key, each in self.loaded_models.items() if key[0] not in left_out}
        return replace(self, loaded_models=kept)

    def unloaded(self) -> list[str]:
        """The names of models that are not loaded, aliases included."""
        names = [*self.options, *self.aliases]
        return [name for name in names if self.failures.get(self.canonical(name)) == NOT_LOADED]

    def exclusive_composing_models(self, model_name: str) -> list[str]:
        """The loaded composing models of this ensemble that no other ensemble has."""
        return [
            part
            for part, ensembles in self.ensembles_of.items()
            if part in self.loaded and list(ensembles) == [model_name]
        ]

    def model_name(self, name: str) -> str:
        """The model behind a requested name: a model, version, alias or adapter."""
        for candidate in (name, name.rpartition(":")[0], name.partition(":")[0]):
            base = self.canonical(candidate).partition("@")[0]
            if candidate and base in self.options:
                return base
        return name

    def canonical(self, name: str) -> str:
        """Replace an alias by its model's name. A version suffix is kept."""
        base, at, version = name.partition("@")
        return self.aliases.get(base, base) + at + version


class Loader(Protocol):
    """Builds served models. `models.loader` implements it."""

    @property
    def uses(self) -> ModelUses:
        """The counters of use of the models that it builds."""

    @property
    def cache_salts(self) -> CacheSalts:
        """The salts of the models that it builds."""

    def load(
        self, name: str, version: int, options: ModelOptions, before: LoadedModel | None
    ) -> LoadedModel:
        """Build the model, or return `before` if nothing has changed. Reads files.

        Raises ModelUnavailable with the reason if the model cannot serve.
        """

    def close(self) -> None:
        """Release what the models share."""


class SnapshotBuilder:
    """Builds snapshots from the server's index. Blocks: it loads tokenizers."""

    def __init__(
        self, server: Server, loader: Loader, settings: Mapping[str, ModelOptions]
    ) -> None:
        self._server = server
        self._loader = loader
        self._settings = settings

    def build(self, before: Snapshot) -> Snapshot:
        """Build the current snapshot. Unchanged models of `before` are reused."""
        self._server.update_snapshot()
        versions, reasons = _states(self._server.model_index())
        names = versions.keys() | reasons.keys()
        draft = _SnapshotDraft(before, names=names, loaded=frozenset(versions))
        draft.ensembles_of = parts = self._parts(versions)
        for name in sorted(names):
            try:
                options = self._options(name)
                draft.claim(name, options)
                ensembles = [] if options.expose else parts.get(name, [])
                if ensemble := options.ensemble or next(iter(ensembles), None):
                    raise Unservable(f"it is a composing model of '{ensemble}'")
                if name not in versions:
                    raise ModelUnavailable(reasons[name])
                self._add(draft, name, versions[name], options)
            except Unservable as error:
                draft.refused[name] = error.message
            except GatewayError as error:
                draft.fail(name, NOT_LOADED if self._went(name, versions) else error.message)
            except OSError as error:  # e.g. no permission to read the folder
                draft.fail(name, str(error))
        return draft.finish()

    def _went(self, name: str, versions: Mapping[str, Sequence[int]]) -> bool:
        """Whether the model was unloaded after the index was read."""
        if name not in versions:
            return False
        self._server.update_snapshot()
        return name not in _states(self._server.model_index())[0]

    def _options(self, name: str) -> ModelOptions:
        folder = model_files.model_folder(name, self._server.options.model_repositories)
        return model_options.of_model(name, folder, self._settings)

    def _parts(self, versions: Mapping[str, Sequence[int]]) -> dict[str, list[str]]:
        """Composing model -> its ensembles, for loaded models."""
        parts: dict[str, list[str]] = {}
        for name in versions:
            try:
                config = self._server.model_config(name)
            except GatewayError:  # unloaded after the index was read
                continue
            for part in model_files.composing_models(config):
                parts.setdefault(part, []).append(name)
        return parts

    def _add(
        self, draft: "_SnapshotDraft", name: str, versions: Sequence[int], options: ModelOptions
    ) -> None:
        """Add all versions. The latest also gets the model's name and decides whether it serves."""
        for version in sorted(versions):
            before = draft.before.loaded_models.get((name, version))
            try:
                loaded = self._loader.load(name, version, options, before)
            except GatewayError as error:
                if version == max(versions):
                    raise
                draft.fail(f"{name}@{version}", error.message)
            else:
                draft.add(loaded, many=len(versions) > 1, latest=version == max(versions))


class _SnapshotDraft:
    """A snapshot under construction."""

    def __init__(self, before: Snapshot, *, names: Collection[str], loaded: frozenset[str]) -> None:
        self.before = before
        self.refused: dict[str, str] = {}
        self.ensembles_of: Mapping[str, Sequence[str]] = {}
        self._loaded = loaded
        self._models: dict[str, ServedModel] = {}
        self._failures: dict[str, str] = {}
        self._options: dict[str, ModelOptions] = {}
        self._claims: dict[str, list[str]] = {}  # alias -> models
        self._unlisted: set[str] = set()
        self._loaded_models: dict[tuple[str, int], LoadedModel] = {}
        self._known = frozenset(names)

    def claim(self, name: str, options: ModelOptions) -> None:
        """Register the model's options and claim its aliases."""
        self._options[name] = options
        for alias in dict.fromkeys(options.aliases):
            self._claims.setdefault(alias, []).append(name)

    def add(self, loaded: LoadedModel, *, many: bool, latest: bool) -> None:
        """Add a version. It is listed by number if the model has several."""
        model = loaded.model
        self._loaded_models[model.model_name, model.version] = loaded
        named = f"{model.model_name}@{model.version}"
        self._name(named, model, alias_of=model.model_name)
        if not many:
            self._unlisted.add(named)
        if latest:
            self._name(model.model_name, model, version=LATEST)

    def _name(self, name: str, model: ServedModel, **known_by: Any) -> None:
        """Register the model under a name, reusing the previous object if it is unchanged."""
        named = replace(model, name=name, **known_by)
        before = self.before.models.get(name)
        unchanged = (
            before is not None
            and before.facts is model.facts  # loaded once for each model that is loaded
            and (before.version, before.alias_of) == (named.version, named.alias_of)
        )
        self._models[name] = before if before is not None and unchanged else named

    def fail(self, name: str, reason: str) -> None:
        """Register a failure. Each new reason is logged, except that a model is not loaded."""
        self._failures[name] = reason
        if reason != NOT_LOADED and self.before.failures.get(name) != reason:
            logger.error("model %s cannot serve: %s", name, reason)

    def finish(self) -> Snapshot:
        """Return the snapshot after all models were added."""
        aliases = self._aliases()
        for alias, name in aliases.items():
            self._add_alias(alias, name)
        return Snapshot(
            models=self._models,
            failures=self._failures,
            refused=self.refused,
            aliases=aliases,
            listed=sorted(self._models.keys() - self._unlisted),
            loaded=self._loaded,
            loaded_models=self._loaded_models,
            options=self._options,
            ensembles_of=self.ensembles_of,
            clashes=frozenset(self._claims.keys() & self._known),
        )

    def _aliases(self) -> dict[str, str]:
        """The aliases that only one model claims. Names of models take precedence."""
        aliases = {}
        for alias, names in self._claims.items():
            if alias in self._known:
                self._log_clash(alias, names)
            elif len(names) > 1:
                models = " and of ".join(f"'{name}'" for name in names)
                self.fail(alias, f"it is an alias of {models}")
            else:
                aliases[alias] = names[0]
        return aliases

    def _log_clash(self, alias: str, names: Sequence[str]) -> None:
        if alias not in self.before.clashes:
            who = ", ".join(names)
            logger.error("model %s: alias %s ignored: a model has that name", who, alias)

    def _add_alias(self, alias: str, name: str) -> None:
        for known, model in list(self._models.items()):
            if model.model_name == name and known.partition("@")[0] == name:
                _, at, version = known.partition("@")
                own = alias + at + version
                self._name(own, model, alias_of=name)
                if at:
                    self._unlisted.add(own)


def _states(index: Iterable[ModelIndexEntry]) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Model -> ready versions, and model -> reason for models without any."""
    versions: dict[str, list[int]] = {}
    reasons: dict[str, str] = {}
    for entry in index:
        if entry.state == "READY" and entry.version is not None:
            versions.setdefault(entry.name, []).append(entry.version)
        else:
            reasons.setdefault(entry.name, _NOTHING_WRONG.get(entry.reason, entry.reason))
    return versions, {name: why for name, why in reasons.items() if name not in versions}
