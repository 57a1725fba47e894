"""Where a model's adapters lie: what its options, its own files and a watched folder name. Checks
no adapter.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from openai_frontend.lora.files import NAME

MULTI_LORA = "multi_lora.json"


@dataclass(frozen=True, slots=True)
class LoRASource:
    """A folder that someone calls an adapter."""

    name: str
    path: Path
    origin: str  # who names it


@dataclass(frozen=True, slots=True, kw_only=True)
class LoRASources:
    """All that names adapters of one model. Relative folders lie in the model's own."""

    model_folder: Path | None = None  # in the repository; None where it was loaded from memory
    version: int = 1  # of the model
    named: Mapping[str, str] = field(default_factory=dict)  # the option `adapters`
    watched: str | None = None  # the option `adapter_folder`

    def found(self) -> tuple[list[LoRASource], dict[str, str]]:
        """Every source, and name -> what is wrong with who names it. Reads folders."""
        problems: dict[str, str] = {}
        sources = [*self._named(), *self._multi_lora(problems), *self._subfolders(problems)]
        for source in sources:
            if not NAME.fullmatch(source.name):
                problems[source.name] = (
                    f"no adapter can have the name that {source.origin} gives it"
                )
        return [source for source in sources if source.name not in problems], problems

    def _named(self) -> Iterator[LoRASource]:
        for name, folder in self.named.items():
            yield LoRASource(name, self._resolved(folder), "the option adapters")

    def _resolved(self, folder: str, within: Path | None = None) -> Path:
        base = within or self.model_folder
        return Path(folder) if base is None else base / folder

    def _multi_lora(self, problems: dict[str, str]) -> list[LoRASource]:
        """NVIDIA's file beside model.json: name -> folder."""
        if self.model_folder is None:
            return []
        file = self.model_folder / str(self.version) / MULTI_LORA
        if not file.is_file():
            return []
        try:
            named = json.loads(file.read_text(encoding="utf-8"))
            if not all(isinstance(path, str) for path in named.values()):
                raise ValueError("a folder is not a text")
        except (OSError, ValueError, AttributeError) as error:
            problems[MULTI_LORA] = f"{MULTI_LORA} is not of the form {{name: folder}}: {error}"
            return []
        return [
            LoRASource(name, self._resolved(path, file.parent), MULTI_LORA)
            for name, path in named.items()
        ]

    def _subfolders(self, problems: dict[str, str]) -> list[LoRASource]:
        """Each folder in a watched one; what starts with a dot is on its way, or somebody's own."""
        if self.watched is None:
            return []
        path = self._resolved(self.watched)
        try:
            inside = sorted(path.iterdir())
        except OSError as error:
            problems[path.name] = f"the adapter_folder cannot be read: {error.strerror}"
            return []
        return [
            LoRASource(each.name, each, "the adapter_folder")
            for each in inside
            if each.is_dir() and not each.name.startswith(".")
        ]
