"""Where a model's adapters lie: what its options, its own files and a watched folder name. Checks
no adapter.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from openai_frontend.adapters.folder import NAME

MULTI_LORA = "multi_lora.json"


@dataclass(frozen=True, slots=True)
class Place:
    """A folder that someone calls an adapter."""

    name: str
    path: Path
    origin: str  # who names it


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """All that names adapters of one model. Relative folders lie in the model's own."""

    model_folder: Path | None = None  # in the repository; None where it was loaded from memory
    version: int = 1  # of the model
    named: Mapping[str, str] = field(default_factory=dict)  # the option `adapters`
    watched: str | None = None  # the option `adapter_folder`

    def found(self) -> tuple[list[Place], dict[str, str]]:
        """Every place, and name -> what is wrong with who names it. Reads folders."""
        problems: dict[str, str] = {}
        places = [*self._named(), *self._multi_lora(problems), *self._subfolders(problems)]
        for place in places:
            if not NAME.fullmatch(place.name):
                problems[place.name] = f"no adapter can have the name that {place.origin} gives it"
        return [place for place in places if place.name not in problems], problems

    def _named(self) -> Iterator[Place]:
        for name, folder in self.named.items():
            yield Place(name, self._resolved(folder), "the option adapters")

    def _resolved(self, folder: str, within: Path | None = None) -> Path:
        base = within or self.model_folder
        return Path(folder) if base is None else base / folder

    def _multi_lora(self, problems: dict[str, str]) -> list[Place]:
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
            Place(name, self._resolved(path, file.parent), MULTI_LORA)
            for name, path in named.items()
        ]

    def _subfolders(self, problems: dict[str, str]) -> list[Place]:
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
            Place(each.name, each, "the adapter_folder")
            for each in inside
            if each.is_dir() and not each.name.startswith(".")
        ]
