"""Finds a model's adapters: those in its options, in multi_lora.json and in a watched folder."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from openai_frontend.lora.files import NAME

MULTI_LORA = "multi_lora.json"


@dataclass(frozen=True, slots=True)
class LoRASource:
    """A folder that is said to hold an adapter."""

    name: str
    path: Path
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

    def _resolved(self, folder: str, within: Path | None = None) -> Path:
        base = within or self.model_folder
        return Path(folder) if base is None else base / folder

    def _multi_lora(self, problems: dict[str, str]) -> list[LoRASource]:
        """multi_lora.json of NVIDIA's vLLM backend, next to model.json: name -> folder."""
        if self.model_folder is None:
            return []
        file = self.model_folder / str(self.version) / MULTI_LORA
        if not file.is_file():
            return []
        try:
            named = json.loads(file.read_text(encoding="utf-8"))
            if not all(isinstance(path, str) for path in named.values()):
                raise ValueError("a folder is not a string")
        except (OSError, ValueError, AttributeError) as error:
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
            inside = sorted(path.iterdir())
        except OSError as error:
            problems[path.name] = f"cannot read adapter_folder: {error.strerror}"
            return []
        return [
            LoRASource(each.name, each, "the option 'adapter_folder'")
            for each in inside
            if each.is_dir() and not each.name.startswith(".")
        ]
