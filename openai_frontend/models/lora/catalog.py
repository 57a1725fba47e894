"""The LoRA adapters of each model: where they are named, and which of them can serve."""

import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from openai_frontend.errors import caught
from openai_frontend.generation import Adapter
from openai_frontend.models.lora import files
from openai_frontend.models.lora.files import NAME, InvalidLoRA, Kind, LoRARequirements
from openai_frontend.runtime.files import FileStamp

MULTI_LORA = "multi_lora.json"


@dataclass(frozen=True, slots=True)
class LoRASource:
    """A folder that is said to hold an adapter."""

    name: str
    path: str
    origin: str  # what names it


@dataclass(frozen=True, slots=True, kw_only=True)
class LoRASources:
    """Where to look for one model's adapters. Relative paths start at the model's folder."""

    model_folder: Path | None = None  # in the repository; None if it was loaded from memory
    version: int = 1  # of the model
    named: Mapping[str, str] = field(default_factory=dict)  # the option `adapters`
    watched: str | None = None  # the option `adapter_folder`

    def found(self) -> tuple[list[LoRASource], dict[str, str]]:
        """Return all sources, and problems by name. Reads folders."""
        problems: dict[str, str] = {}
        sources = [*self._named(), *self._multi_lora(problems), *self._subfolders(problems)]
        for source in sources:
            if not NAME.fullmatch(source.name):
                problems[source.name] = f"invalid adapter name (from {source.origin})"
        return [source for source in sources if source.name not in problems], problems

    def _named(self) -> Iterator[LoRASource]:
        for name, folder in self.named.items():
            yield LoRASource(name, self._resolved(folder), "the option 'adapters'")

    def _resolved(self, folder: str, within: Path | None = None) -> str:
        base = within or self.model_folder
        return folder if base is None else os.path.join(base, folder)

    def _multi_lora(self, problems: dict[str, str]) -> list[LoRASource]:
        """multi_lora.json of NVIDIA's vLLM backend, next to model.json: name -> folder."""
        if self.model_folder is None:
            return []
        file = self.model_folder / str(self.version) / MULTI_LORA
        if not file.is_file():
            return []
        try:
            named = files.read_json(file)
            if not all(isinstance(path, str) for path in named.values()):
                raise InvalidLoRA("a folder is not a string")
        except OSError as error:
            problems[MULTI_LORA] = f"{MULTI_LORA} cannot be read: {error.strerror}"
            return []
        except InvalidLoRA as error:
            problems[MULTI_LORA] = f"{MULTI_LORA} must map names to folders: {error}"
            return []
        return [
            LoRASource(name, self._resolved(path, file.parent), MULTI_LORA)
            for name, path in named.items()
        ]

    def _subfolders(self, problems: dict[str, str]) -> list[LoRASource]:
        """The subfolders of the watched folder, except hidden ones, which may be incomplete."""
        if self.watched is None:
            return []
        path = self._resolved(self.watched)
        try:
            with os.scandir(path) as inside:
                names = [each.name for each in inside if each.name[0] != "." and each.is_dir()]
        except OSError as error:
            problems[os.path.basename(path)] = f"cannot read adapter_folder: {error.strerror}"
            return []
        origin = "the option 'adapter_folder'"
        return [LoRASource(name, f"{path}/{name}", origin) for name in sorted(names)]


logger = logging.getLogger(__name__)

NO_ADAPTERS = (
    'the model does not support LoRA adapters; for a vLLM model, set "enable_lora": true in '
    "model.json"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """The adapters of a model, as one scan found them."""

    adapters: Mapping[str, Adapter] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)  # name -> why it cannot serve
    clashes: frozenset[str] = frozenset()  # problems: two adapters with the same name
    unloaded: frozenset[str] = frozenset()  # valid, but unloaded by request
    possible: bool = False  # the model supports adapters, even if it has none

    def names(self, name: str) -> bool:
        """Whether an adapter has this name, be it valid, invalid or unloaded."""
        return name in self.adapters or name in self.problems or name in self.unloaded


class _NameClash(InvalidLoRA):
    """Two adapters have the same name."""


class LoRACatalog:
    """The adapters of all models. `scan` reads the disk: call it off the loop, one at a time."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        # Keyed by what identifies an adapter: model, name, folder, content
        self._adapters: dict[tuple[object, ...], Adapter] = {}
        # Folder -> its stamp at the last scan, and the first with the same content
        self._stamps: dict[tuple[str, Kind], tuple[files.Stamp, files.Stamp]] = {}
        self._checked: dict[tuple[object, ...], str | None] = {}
        self._unloaded: dict[str, frozenset[str]] = {}
        self._logged: dict[str, Mapping[str, str]] = {}

    def scan(
        self, model: str, sources: LoRASources, requirements: LoRARequirements | None
    ) -> ScanResult:
        """Scan the model's folders. Each problem is logged once."""
        if requirements is None:  # adapter_folder may be set for all models (*); ignore it here
            sources = replace(sources, watched=None)
        found, problems = sources.found()
        adapters = {}
        clashes: set[str] = set()
        for name, named in _by_name(found).items():
            with caught(partial(_add_failure, problems, name)):
                try:
                    adapters[name] = self._adapter(model, _only(named), requirements)
                except InvalidLoRA as error:
                    problems[name] = str(error)
                    clashes |= {name} if isinstance(error, _NameClash) else set()
        self._log(model, problems)
        unloaded = self._unloaded.get(model, frozenset()) & adapters.keys()
        kept = {name: each for name, each in adapters.items() if name not in unloaded}
        return ScanResult(
            adapters=kept,
            problems=problems,
            clashes=frozenset(clashes),
            unloaded=unloaded,
            possible=requirements is not None,
        )

    def unload(self, model: str, name: str) -> None:
        """Leave the adapter out of the following scans."""
        self._unloaded[model] = self._unloaded.get(model, frozenset()) | {name}

    def load(self, model: str, name: str) -> None:
        """Undo `unload` from the next scan on."""
        self._unloaded[model] = self._unloaded.get(model, frozenset()) - {name}

    def _adapter(
        self, model: str, source: LoRASource, requirements: LoRARequirements | None
    ) -> Adapter:
        if requirements is None:
            raise InvalidLoRA(NO_ADAPTERS)
        if requirements.kind is None:
            if source.origin != MULTI_LORA:
                raise InvalidLoRA("the model's backend serves only the adapters in multi_lora.json")
            return self._known((model, source.name), source.name, None)
        stamp = self._stamp(source.path, requirements.kind)
        self._check(source.path, stamp, requirements)
        return self._known((model, source.name, source.path, stamp), source.name, source.path)

    def _stamp(self, path: str, kind: Kind) -> files.Stamp:
        """Another hard link to a file, such as of a backup, leaves the stamp as it was."""
        stamp = files.stamp(path, kind)
        last, first = self._stamps.get((path, kind), (stamp, stamp))
        if not all(map(FileStamp.has_content_of, stamp, last)):
            first = stamp
        self._stamps[path, kind] = stamp, first
        return first

    def _check(self, path: str, stamp: files.Stamp, requirements: LoRARequirements) -> None:
        """Validate the files, once for each content."""
        key = path, stamp, requirements
        if key not in self._checked:
            self._checked[key] = _problem(Path(path), requirements)
        if (reason := self._checked[key]) is not None:
            raise InvalidLoRA(reason)

    def _known(self, key: tuple[object, ...], name: str, path: str | None) -> Adapter:
        if (known := self._adapters.get(key)) is None:
            folder = None if path is None else Path(path)
            known = self._adapters[key] = Adapter(name=name, id=next(self._ids), path=folder)
        return known

    def _log(self, model: str, problems: Mapping[str, str]) -> None:
        before = self._logged.get(model, {})
        for name, reason in problems.items():
            if before.get(name) != reason:
                logger.error("adapter %s:%s cannot serve: %s", model, name, reason)
        self._logged[model] = problems


def _problem(path: Path, requirements: LoRARequirements) -> str | None:
    """Why an adapter's files cannot serve; None if they can."""
    problems: dict[str, str] = {}
    with caught(partial(_add_failure, problems, "")):
        try:
            files.check(path, requirements)
        except InvalidLoRA as error:
            return str(error)
    return problems.get("")


def _add_failure(problems: dict[str, str], name: str, error: Exception) -> None:
    """A file that its check did not foresee: this adapter cannot serve, and others still do."""
    problems[name] = f"its files cannot be checked ({type(error).__name__})"


def _by_name(sources: Iterable[LoRASource]) -> dict[str, list[LoRASource]]:
    named: dict[str, list[LoRASource]] = {}
    for source in sources:
        named.setdefault(source.name, []).append(source)
    return named


def _only(sources: list[LoRASource]) -> LoRASource:
    """The folder that all sources name, if it is the same one."""
    first, *others = sources
    for other in others:
        if os.path.realpath(other.path) != os.path.realpath(first.path):
            raise _NameClash(
                f"two adapters have this name: one from {first.origin}, one from {other.origin}"
            )
    return first
