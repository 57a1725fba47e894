"""The processes of Triton's Python backend: which instance each serves, and which have died.

The core does not tell: where a stub is killed, requests that it streams to never end, later ones
fail one by one, and the model stays ready (core 2.51).
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psutil

_PROGRAM = "triton_python_backend_stub"
_NAME_AT = -2  # among the arguments: the name of the model's instance


class Stubs:
    """The children of this process that are stubs."""

    def __init__(self) -> None:
        self._instances: dict[psutil.Process, str] = {}
        self._ended: set[psutil.Process] = set()  # at the last look
        self._given_up: set[psutil.Process] = set()

    def find(self) -> None:
        """Learn of the stubs that have come. Reads /proc: on a thread."""
        found = {}
        children = psutil.Process().children()
        self._given_up.intersection_update(children)
        for process in children:
            if process in self._given_up:
                continue
            instance = self._instances.get(process) or _instance(process)
            if instance is not None:
                found[process] = instance
        self._instances = found

    def dead(self) -> set[str]:
        """The names of the instances whose stub has died and is not being put away: a stub that
        Triton ends is a zombie too, but not for two looks.
        """
        ended = {process for process in self._instances if _is_zombie(process)}
        both, self._ended = ended & self._ended, ended
        return {self._instances[process] for process in both}

    def give_up(self, processes: Iterable[psutil.Process]) -> None:
        """End them, and know them no more: others are to take their places. The core reaps them
        when it unloads their instances, if ever.
        """
        for process in processes:
            self._given_up.add(process)
            self._instances.pop(process, None)
            with contextlib.suppress(psutil.Error):  # the core has put it away
                process.kill()

    def of(self, config: Mapping[str, Any]) -> list[psutil.Process]:
        """The stubs of a model, by its config, the dead ones too."""
        return [
            process
            for process, instance in self._instances.items()
            if serves(instance, config.get("instance_group", ()))
        ]


def serves(instance: str, groups: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an instance belongs to one of the groups of a model's config."""
    base, _, number = instance.rpartition("_")
    return any(group["name"] in (instance, base if number.isdigit() else "") for group in groups)


def _instance(process: psutil.Process) -> str | None:
    try:
        arguments = process.cmdline()
    except psutil.Error:  # it has gone, or is a zombie
        return None
    is_stub = len(arguments) > -_NAME_AT and arguments[0].endswith(_PROGRAM)
    return arguments[_NAME_AT] if is_stub else None


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:  # Triton has put it away
        return False
