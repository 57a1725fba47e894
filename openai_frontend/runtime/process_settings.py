"""Settings of a whole process: open files, memory that glibc keeps, priority, and the end of its
parent.
"""

import ctypes
import logging
import os
import resource
import signal

logger = logging.getLogger(__name__)

# Descriptors for other things than connections: model files, the core, engines
_RESERVED_DESCRIPTORS = 512
_PR_SET_PDEATHSIG = 1
_MIB = 1 << 20
# mallopt's number and value, and the variable by which an operator sets another value. 32 MiB is
# the most that glibc accepts for the first.
_MALLOC_OPTIONS = {
    "MALLOC_MMAP_THRESHOLD_": (-3, 32 * _MIB),
    "MALLOC_TRIM_THRESHOLD_": (-1, 64 * _MIB),
    "MALLOC_ARENA_MAX": (-8, 8),  # glibc's own limit is eight for each core
}


def raise_nofile_limit(connections: int) -> None:
    """Raises the soft limit of open files (RLIMIT_NOFILE) for this number of connections, up to the
    hard limit, and warns if that is too low.

    If descriptors run out all the same, the event loop rejects new connections.
    """
    needed = connections + _RESERVED_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and needed > hard:
        logger.warning(
            "the hard limit for open files is %d, but max_connections needs %d",
            hard,
            needed,
        )
        needed = hard
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def keep_freed_memory() -> None:
    """Keep the memory of one request for the next: up to 64 MiB in each of eight arenas.

    Otherwise glibc returns large pieces to the kernel, which maps and clears them again: 12 of 29
    ms of CPU time for preprocessing an image of 1,024 x 1,024 pixels, and 9 of 27 ms for a chat
    with 30 known images. Options that the environment sets remain. Does nothing with another C
    library.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is None:
        return
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    for variable, (option, value) in _MALLOC_OPTIONS.items():
        if variable not in os.environ and f"glibc.{_tunable(variable)}=" not in tunables:
            mallopt(option, value)


def _tunable(variable: str) -> str:
    """Such as `malloc.trim_threshold`."""
    return variable.lower().rstrip("_").replace("_", ".", 1)


def end_with(parent: int) -> None:
    """In a fork: the kernel kills this process when the process that forked it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        os._exit(1)


def lower_priority(niceness: int) -> None:
    """Let the event loop and the engines run first, so that streams of text do not wait for new
    images or grammars. `niceness` as for nice(2): 5 leaves a third of the usual weight, 10 a tenth.
    """
    os.nice(niceness)
