"""On CPUs, starts vLLM's engine processes from one process that has imported vLLM already.

Importing vLLM takes 7 of the 10 s of CPU time that an engine with a small model needs to start.
Python's fork server imports it once, while the gateway imports vLLM itself. With GPUs, vLLM spawns
each process: if an import initialized CUDA, processes forked afterwards could not use the GPU.
"""

import os
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

from openai_frontend.engines.vllm import capabilities, versions

# What an engine's process imports. It need not be complete: the rest is imported in each process.
_PRELOADED = [
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "openai_frontend.engines.vllm.scheduler",
    "openai_frontend.engines.vllm.worker",
    "openai_frontend.engines.vllm.engine_processes",
]


class _EngineProcess(ForkServerProcess):
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


class _Context(ForkServerContext):
    Process = _EngineProcess


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
    """Make vLLM start its engines' processes from the fork server."""
    if _is_usable():
        from vllm.v1.engine import utils

        utils.get_mp_context = _context


def _context() -> Any:
    return _Context()


def _is_usable() -> bool:
    return on_cpu() and versions.installed().has(capabilities.FORK_SERVER)
