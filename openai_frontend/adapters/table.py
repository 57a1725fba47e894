"""Which adapters each model has. Looks at folders; never at requests."""

import itertools
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from openai_frontend.adapters import folder
from openai_frontend.adapters.folder import BadAdapter, Taken
from openai_frontend.adapters.places import MULTI_LORA, Place, Places
from openai_frontend.generation import Adapter

logger = logging.getLogger(__name__)

NO_ADAPTERS = (
    'the model takes no adapters: of vLLM\'s models it is model.json that says "enable_lora": true'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The adapters of a model at one moment."""

    adapters: Mapping[str, Adapter] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)  # name -> why it cannot serve
    clashes: frozenset[str] = frozenset()  # the problems of two adapters with one name
    unloaded: frozenset[str] = frozenset()  # could serve, and somebody has unloaded them
    possible: bool = False  # the model takes adapters, whether or not there are any

    def names(self, name: str) -> bool:
        """Whether there is, or should be, an adapter of this name."""
        return name in self.adapters or name in self.problems or name in self.unloaded


class _Clash(BadAdapter):
    """Two adapters of one name."""


class AdapterTable:
    """What was found, by model. `look` reads the disk: off the event loop, one at a time."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        # What makes an adapter another one: model, name, folder, content
        self._adapters: dict[tuple[object, ...], Adapter] = {}
        self._checked: dict[tuple[object, ...], str | None] = {}
        self._unloaded: dict[str, frozenset[str]] = {}
        self._logged: dict[str, Mapping[str, str]] = {}

    def look(self, model: str, places: Places, taken: Taken | None) -> Found:
        """The model's adapters as they are now; what is wrong is logged once."""
        if taken is None:  # a folder may be every model's, and is none of this one's
            places = replace(places, watched=None)
        found, problems = places.found()
        adapters = {}
        clashes: set[str] = set()
        for name, named in _by_name(found).items():
            try:
                adapters[name] = self._adapter(model, _only(named), taken)
            except BadAdapter as error:
                problems[name] = str(error)
                clashes |= {name} if isinstance(error, _Clash) else set()
        self._log(model, problems)
        unloaded = self._unloaded.get(model, frozenset()) & adapters.keys()
        kept = {name: each for name, each in adapters.items() if name not in unloaded}
        return Found(
            adapters=kept,
            problems=problems,
            clashes=frozenset(clashes),
            unloaded=unloaded,
            possible=taken is not None,
        )

    def unload(self, model: str, name: str) -> None:
        """Leave it out from the next look on."""
        self._unloaded[model] = self._unloaded.get(model, frozenset()) | {name}

    def load(self, model: str, name: str) -> None:
        """Take it up again."""
        self._unloaded[model] = self._unloaded.get(model, frozenset()) - {name}

    def _adapter(self, model: str, place: Place, taken: Taken | None) -> Adapter:
        if taken is None:
            raise BadAdapter(NO_ADAPTERS)
        if taken.kind is None:
            if place.origin != MULTI_LORA:
                raise BadAdapter("the model's backend knows those of multi_lora.json alone")
            return self._known((model, place.name), place.name, None)
        stamp = folder.stamp(place.path, taken.kind)
        self._check(place.path, stamp, taken)
        return self._known((model, place.name, place.path, stamp), place.name, place.path)

    def _check(self, path: Path, stamp: folder.Stamp, taken: Taken) -> None:
        """Once for each content."""
        key = path, stamp, taken
        if key not in self._checked:
            self._checked[key] = None
            try:
                folder.check(path, taken)
            except BadAdapter as error:
                self._checked[key] = str(error)
        if (reason := self._checked[key]) is not None:
            raise BadAdapter(reason)

    def _known(self, key: tuple[object, ...], name: str, path: Path | None) -> Adapter:
        if key not in self._adapters:
            self._adapters[key] = Adapter(name=name, id=next(self._ids), path=path)
        return self._adapters[key]

    def _log(self, model: str, problems: Mapping[str, str]) -> None:
        before = self._logged.get(model, {})
        for name, reason in problems.items():
            if before.get(name) != reason:
                logger.error("adapter %s:%s cannot serve: %s", model, name, reason)
        self._logged[model] = problems


def _by_name(places: Iterable[Place]) -> dict[str, list[Place]]:
    named: dict[str, list[Place]] = {}
    for place in places:
        named.setdefault(place.name, []).append(place)
    return named


def _only(places: list[Place]) -> Place:
    """The one folder that all of them mean."""
    first, *others = places
    for other in others:
        if other.path.resolve() != first.path.resolve():
            raise _Clash(
                f"two adapters have this name: one of {first.origin}, and one of {other.origin}"
            )
    return first
