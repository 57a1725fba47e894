"""On CPUs, starts the processes of vLLM models from one process that has imported vLLM already: the
engines, and helpers for media and grammars.

Importing vLLM takes 7 of the 10 s of CPU time that an engine with a small model needs to start.
Python's fork server imports it once, while the gateway imports vLLM itself. With GPUs, each process
imports it: if an import initialized CUDA, processes forked afterwards could not use the GPU.
"""

import gc
import multiprocessing
import os
import socket
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import forkserver
from multiprocessing.context import BaseContext, ForkServerContext, ForkServerProcess
from threading import Thread
from typing import Any

from openai_frontend.engines.vllm import capabilities, versions
from openai_frontend.engines.vllm.processes.failures import ReportingProcess, ReportingSpawnContext
from openai_frontend.runtime import helper_process
from openai_frontend.runtime.helper_process import HelperProcess

# Modules that these processes import. The list need not be complete: each process imports the rest.
_PRELOADED = [
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "openai_frontend.engines.vllm.processes.scheduler",
    "openai_frontend.engines.vllm.processes.worker",
    "openai_frontend.engines.vllm.processes.children",
    "openai_frontend.engines.vllm.media.worker",
    "openai_frontend.engines.vllm.grammars.sandbox_worker",
    "openai_frontend.engines.vllm.processes.fork_server",
    "llguidance",
    "xgrammar",
]


class _Process(ReportingProcess, ForkServerProcess):
    """Gets the environment that its parent has when it starts, as a spawned process does."""

    def start(self) -> None:
        self._environment = dict(os.environ)
        super().start()

    def run(self) -> None:
        for name in os.environ.keys() - self._environment.keys():
            del os.environ[name]
        # Only what differs: setproctitle writes where the unchanged ones lie.
        os.environ.update(self._environment.items() - os.environ.items())
        super().run()

    def wait(self) -> None:
        """Like `subprocess.Popen.wait`."""
        self.join()


class _Context(ForkServerContext):
    Process = _Process


def on_cpu() -> bool:
    """Whether the installed vLLM is built for CPUs, as vLLM itself finds out; imports nothing."""
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:
        return False


def prepare() -> None:
    """Let the fork server begin to import vLLM, without waiting for it.

    The environment variables that vLLM reads when it is imported must be set before.
    """
    if _is_usable():
        forkserver.set_forkserver_preload(_PRELOADED)
        forkserver.ensure_running()


def install() -> None:
    """Make vLLM start its engines' processes from the fork server, and let these, as spawned ones,
    report why they fail.
    """
    if not versions.installed().has(capabilities.FORK_SERVER):
        return
    from vllm.v1.engine import utils

    if on_cpu():
        utils.get_mp_context = _context
    elif not isinstance(utils.get_mp_context, partial):
        utils.get_mp_context = partial(_reporting_context, utils.get_mp_context)


def launch(function: str, connection: socket.socket, arguments: tuple[Any, ...]) -> HelperProcess:
    """Like `helper_process.launch`, but from the fork server if it can be used."""
    if not _is_usable():
        return helper_process.launch(function, connection, arguments)
    process = _Process(target=_call, args=(function, connection, arguments), daemon=True)
    process.start()
    return process


def end_with_parent() -> None:
    """In an engine's process: end it as soon as the gateway has ended, however that ended.

    vLLM's engines end when the gateway tells them to. A gateway that was killed would leave them,
    with the memory of their GPUs, in the way of the gateway that a supervisor starts next.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:  # None in the gateway's own process
        Thread(target=_end_after, args=(parent,), name="end-with-parent", daemon=True).start()


def _end_after(parent: Any) -> None:
    parent.join()
    os._exit(1)  # no client is left; vLLM's worker processes end with this one


def _call(function: str, connection: socket.socket, arguments: tuple[Any, ...]) -> None:
    from setproctitle import setproctitle  # vLLM needs it too

    setproctitle(function)
    gc.freeze()  # these processes fork: a collection would copy the memory that they share
    os.setsid()  # Ctrl-C in a terminal does not reach it
    helper_process.call(function, connection, arguments)


def _context() -> Any:
    return _Context()


def _reporting_context(of_vllm: Callable[[], BaseContext]) -> BaseContext:
    context = of_vllm()
    return ReportingSpawnContext() if context.get_start_method() == "spawn" else context


def _is_usable() -> bool:
    return on_cpu() and versions.installed().has(capabilities.FORK_SERVER)
