"""The process's environment variables: vLLM's defaults, and what vLLM leaves behind.

vLLM and what it imports set about 20 variables. The gateway's other children would inherit them.
"""

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping

DEFAULTS = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # vLLM's and torch's start-up warnings on a CPU are about the settings in CPU_ARGUMENTS.
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TORCH_LOGS": "-all",
    "PYTHONWARNINGS": "ignore::FutureWarning",  # in the engine's process
}
# Measured on two cores with 32 streams: 4,800 tokens/s, against 500 to 700 with vLLM's defaults.
# Without multiprocessing, the executor runs in the EngineCore process instead of a third one. One
# OpenMP thread keeps it from pinning itself to the core that the gateway runs on.
CPU_DEFAULTS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
}
# Variables that remain after a load of vLLM, beside its own (VLLM_...), which it reads at any time.
# It sets all others again at the next load.
KEPT = {
    *DEFAULTS,  # for engines and helper processes, which start at any time
    *CPU_DEFAULTS,
    # torch reads it at each check for GPUs; without it a check in this process initializes CUDA
    "PYTORCH_NVML_BASED_CUDA_CHECK",
}

_lock = threading.Lock()
_loads = 0  # running, on threads of their own
_before: Mapping[str, str] = {}  # the environment before the first of them


def is_kept(name: str) -> bool:
    """Whether a variable that was set during a load of vLLM stays."""
    return name in KEPT or name.startswith("VLLM_")


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Around everything that imports or configures vLLM: restore the variables at the end, except
    `KEPT`. If several loads overlap, the last one restores them.
    """
    global _loads, _before
    with _lock:
        if not _loads:
            _before = dict(os.environ)
        _loads += 1
    try:
        yield
    finally:
        with _lock:
            _loads -= 1
            if not _loads:
                _restore(_before)


def _restore(before: Mapping[str, str]) -> None:
    changed = {name for name, value in os.environ.items() if before.get(name) != value}
    for name in {*changed, *(before.keys() - os.environ.keys())}:
        if is_kept(name):
            continue
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
