"""Tracks the processes of Triton's Python backend: the instance of each, and which have died.

The core does not report it: if a stub is killed, its streams never end, later requests fail one by
one, and the model stays ready (core 2.51). Cores since 2025-12 (checked: 2.70) reap a dead stub
when its model's readiness is queried, and then report the model as not ready.
"""

import contextlib
import logging
import os
import platform
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from openai_frontend.runtime.triton_interface import STUB, STUB_INSTANCE, STUB_INSTANCE_AT

logger = logging.getLogger(__name__)

REAP_AFTER_S = 30.0  # the core removes an instance within 3 s, if no request is in flight
MAX_REMAINS = 50  # 1,800 threads: containers often allow 4,096 or fewer
GIVEN_UP_S = 30.0  # a stub that has finalized its model ends within seconds
_THREADS = Path("/proc/self/task")
_WAIT4 = {"x86_64": "61", "aarch64": "260"}.get(platform.machine())  # the system call's number


class StubProcesses:
    """The children of this process that are stubs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # state changes on threads and on the event loop
        self._instances: dict[psutil.Process, str] = {}
        self._ended: set[psutil.Process] = set()  # at the last check
        self._reaped: set[psutil.Process] = set()  # gone and not replaced
        self.lost = False  # whether one has ended since the last `refresh`
        self.suspects = False  # whether the last check found one that ended since the one before
        self.children: frozenset[int] = frozenset()  # of this process, also those of other engines
        # By `kill`, with their instances, until others serve those
        self._killed: dict[psutil.Process, str] = {}
        self._abandoned_s: dict[psutil.Process, float] = {}  # since when, on the monotonic clock
        self._remains: list[str] = []  # instances that the core keeps, without their process

    def refresh(self, *, changing: bool = False) -> None:
        """Find new stubs. Reads /proc: call on a thread. Raises OSError if it cannot be read.

        While models are `changing`, a second stub of an instance is ignored: the core uses the old
        one until the new one has started. A stub that is gone stays known until another one serves
        its instance.
        """
        try:
            children = psutil.Process().children()
        except psutil.Error as error:
            raise OSError(f"/proc cannot be read: {error}") from error
        self.children = frozenset(each.pid for each in children)
        named = {each: self._instances.get(each) or _instance(each) for each in children}
        with self._lock:
            known, held_back = self._instances, set(self._instances.values()) if changing else set()
            found = {
                process: instance
                for process, instance in named.items()
                if instance is not None
                and process not in self._killed
                and (process in known or instance not in held_back)
            }
            gone = {process: known[process] for process in known.keys() - named.keys()}
            reaped = {each: of for each, of in gone.items() if of not in found.values()}
            self._instances, self._reaped, self.lost = found | reaped, set(reaped), False
            serving = {*found.values(), *reaped.values()}
            self._killed = {
                process: instance
                for process, instance in self._killed.items()
                if process in named or instance not in serving
            }

    def dead(self) -> set[str]:
        """The instances whose stub has died.

        A stub that Triton stops is a zombie too, but not in two consecutive checks.
        """
        states = {process: _status(process) for process in self.newest().values()}
        gone = {each for each, state in states.items() if state is None}
        self.lost = not gone <= self._reaped
        ended = {each for each, state in states.items() if state == psutil.STATUS_ZOMBIE}
        both, self.suspects = ended & self._ended, not ended <= self._ended
        self._ended = ended
        return {self._instances[process] for process in both}

    def reaped(self) -> set[str]:
        """The instances without a stub as of the last `refresh`: stopped, or died and reaped."""
        return {instance for each, instance in self._instances.items() if each in self._reaped}

    def forget_reaped(self, except_for: Callable[[str], bool]) -> None:
        """Forget stubs that are gone, except those of instances for which `except_for` is true."""
        with self._lock:
            self._instances = {
                process: instance
                for process, instance in self._instances.items()
                if process not in self._reaped or except_for(instance)
            }
            self._killed = {
                process: instance
                for process, instance in self._killed.items()
                if except_for(instance) or process.is_running()
            }

    def newest(self) -> dict[str, psutil.Process]:
        """Return the newest stub of each instance: the core keeps a dead one that has requests in
        flight, next to the one of a later load.
        """
        return _newest(self._instances)

    def kill(self, processes: Iterable[psutil.Process]) -> None:
        """Kill and forget processes that others will replace. The core reaps them when it unloads
        their instances, if ever.
        """
        for process in processes:
            with self._lock:
                if (instance := self._instances.pop(process, None)) is not None:
                    self._killed[process] = instance
            with contextlib.suppress(psutil.Error):  # the core has stopped it
                process.kill()

    def abandon(self, processes: Iterable[psutil.Process]) -> None:
        """Kill processes whose instances the core has replaced or unloaded; `reap` reaps them."""
        self.kill(processes)
        for process in processes:
            self._abandoned_s.setdefault(process, time.monotonic())

    def reap(self) -> None:
        """Reap abandoned processes that the core has not reaped: it keeps their instances for good,
        because it waits for their requests.

        Not earlier: the core kills the process of an instance that it removes, and would kill
        another process that has got the number of a reaped one.
        """
        for process, since_s in self._abandoned_s.copy().items():
            if time.monotonic() - since_s < REAP_AFTER_S:
                continue
            del self._abandoned_s[process]
            with contextlib.suppress(ChildProcessError):  # the core has
                if os.waitpid(process.pid, os.WNOHANG)[0]:
                    self._remains.append(self._killed.pop(process))

    @property
    def reaps(self) -> bool:
        """Whether `reap` has something to do."""
        return bool(self._abandoned_s)

    def lost_instances(self) -> set[str]:
        """The instances that the core may keep for good: their process has died."""
        known = {**self._killed, **self._instances}
        zombies = {of for each, of in known.items() if _status(each) == psutil.STATUS_ZOMBIE}
        return zombies.union(self._remains)

    def any_running(self) -> bool:
        """Whether a known stub has not ended."""
        return not all(map(has_ended, self._instances))

    def has_room(self) -> bool:
        """Whether the core may keep another lost instance."""
        return len(self._remains) < MAX_REMAINS

    def kill_stopped(self) -> set[str]:
        """Kill processes that were stopped by a signal, and return their instances."""
        stopped = [each for each in self._instances if is_stopped(each)]
        instances = {self._instances[process] for process in stopped}
        self.kill(stopped)
        return instances

    def of_model(self, config: Mapping[str, Any]) -> list[psutil.Process]:
        """The stubs of the model with this config, including dead ones."""
        return [
            process
            for process, instance in self._instances.items()
            if serves(instance, config.get("instance_group", ()))
        ]

    def serving(self, config: Mapping[str, Any]) -> list[psutil.Process]:
        """The newest process of each instance of the model with this config, also one that `kill`
        has ended.
        """
        groups = config.get("instance_group", ())
        newest = _newest({**self._killed, **self._instances})
        return [process for instance, process in newest.items() if serves(instance, groups)]


class GivenUpStubs:
    """Stubs that Triton has given up while their models loaded.

    A load fails if the stub does not set its health flag for a second, as on a machine that was
    paused. The backend then waits for the end of the process without asking it to end (core 2.51),
    so the load never returns.
    """

    def __init__(self) -> None:
        self._awaited_since_s: dict[psutil.Process, float] = {}

    def kill(self) -> None:
        """Kill stubs whose end a thread has awaited for `GIVEN_UP_S`. The core logs a failed load.

        Reads /proc: call it on a thread, again and again while models change.
        """
        awaited, now_s = _awaited_processes(), time.monotonic()
        children = psutil.Process().children() if awaited else ()
        stubs = {each: _instance(each) for each in children if each.pid in awaited}
        self._awaited_since_s = {
            stub: self._awaited_since_s.get(stub, now_s) for stub, of in stubs.items() if of
        }
        for stub, since_s in self._awaited_since_s.items():
            if now_s - since_s >= GIVEN_UP_S:
                logger.warning(
                    "Triton waits for the end of instance %s's process, which it has given up; "
                    "the process is killed",
                    stubs[stub],
                )
                with contextlib.suppress(psutil.NoSuchProcess):
                    stub.kill()


def _awaited_processes() -> set[int]:
    """The ids of processes for whose end threads of this process wait."""
    awaited = set()
    for thread in _THREADS.iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            number, _, arguments = (thread / "syscall").read_text().partition(" ")
            if number == _WAIT4:
                awaited.add(int(arguments.split()[0], 16))
    return awaited


def serves(instance: str, groups: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an instance belongs to one of the instance groups of a model's config."""
    numbered = STUB_INSTANCE.fullmatch(instance)
    return numbered is not None and any(group["name"] == numbered["group"] for group in groups)


def has_ended(process: psutil.Process) -> bool:
    """Whether a process has ended, also if Triton has not reaped it."""
    return _status(process) in (None, psutil.STATUS_ZOMBIE)


def is_zombie(process: psutil.Process) -> bool:
    """Whether a process has ended and was not reaped."""
    return _status(process) == psutil.STATUS_ZOMBIE


def is_stopped(process: psutil.Process) -> bool:
    """Whether a signal has stopped the process (SIGSTOP)."""
    return _status(process) == psutil.STATUS_STOPPED


def _newest(instances: Mapping[psutil.Process, str]) -> dict[str, psutil.Process]:
    by_age = sorted(instances, key=psutil.Process.create_time)
    return {instances[process]: process for process in by_age}


def _instance(process: psutil.Process) -> str | None:
    try:
        arguments = process.cmdline()
    except psutil.Error:  # gone or a zombie
        return None
    is_stub = len(arguments) > -STUB_INSTANCE_AT and arguments[0].endswith(STUB)
    return arguments[STUB_INSTANCE_AT] if is_stub else None


def _status(process: psutil.Process) -> str | None:
    """psutil's status; None if the process is gone."""
    try:
        return str(process.status())
    except psutil.Error:  # Triton has stopped or reaped it
        return None
