"""Moves the memory of this process to huge pages of 2 MiB.

A request touches many small objects, which lie in hundreds of megabytes of modules and models. With
pages of 4 KiB, and the more so in virtual machines, much of its time goes into address translation.
"""

import ctypes
import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger(__name__)

_HUGE_BYTES = 2 << 20
_PAGE_BYTES = 4096
_ENTRY_BYTES = 8  # of the page table's file, `pagemap`; one for each page
_PRESENT = 1 << 63
# Collapsing makes all pages of a range present, so emptier ranges, such as stacks, would need more
# memory.
_MIN_PRESENT = (_HUGE_BYTES // _PAGE_BYTES) * 7 // 8
_MADV_COLLAPSE = 25  # since Linux 6.1; older kernels answer EINVAL
_POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_PROCESS = Path("/proc/self")


def collapse(policy: Path = _POLICY, process: Path = _PROCESS) -> int:
    """Move what is in use now to huge pages; returns the number of bytes that the kernel accepted.

    Does nothing if the machine's policy is `never`, its kernel or page size does not suit, or the
    process may not read its own page table.
    Blocks for up to 5 ms per 2 MiB: call it on a thread. Memory that was in huge pages before costs
    nothing.
    """
    if os.sysconf("SC_PAGE_SIZE") != _PAGE_BYTES:
        return 0
    try:
        ranges = list(_filled_ranges(process)) if _is_allowed(policy) else []
    except OSError as error:
        logger.info("memory stays in small pages: %s", error)
        return 0
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    accepted = 0
    for start, size in ranges:
        if madvise(start, size, _MADV_COLLAPSE) == 0:
            accepted += size
        elif ctypes.get_errno() == errno.ENOMEM:  # no huge page is free
            break
    return accepted


def _is_allowed(policy: Path) -> bool:
    return policy.exists() and "[never]" not in policy.read_text()


def _filled_ranges(process: Path) -> Iterator[tuple[int, int]]:
    """Address and size of each run of whole huge pages that is almost full."""
    with open(process / "pagemap", "rb", buffering=0) as pagemap:
        for first, end in _anonymous_areas(process / "maps"):
            start = None
            for address in range(first, end, _HUGE_BYTES):
                if _is_filled(pagemap.fileno(), address):
                    if start is None:
                        start = address
                elif start is not None:
                    yield start, address - start
                    start = None
            if start is not None:
                yield start, end - start


def _anonymous_areas(path: Path) -> Iterator[tuple[int, int]]:
    """First and last address of the whole huge pages in the heap and in private mappings without a
    file.
    """
    with open(path) as maps:
        for line in maps:
            addresses, mode, _, _, inode, *name = line.split()
            if mode != "rw-p" or inode != "0" or name not in ([], ["[heap]"]):
                continue
            start, end = (int(each, 16) for each in addresses.split("-"))
            first = -(-start // _HUGE_BYTES) * _HUGE_BYTES
            last = end // _HUGE_BYTES * _HUGE_BYTES
            if first < last:
                yield first, last


def _is_filled(pagemap: int, address: int) -> bool:
    size = _HUGE_BYTES // _PAGE_BYTES * _ENTRY_BYTES
    entries = os.pread(pagemap, size, address // _PAGE_BYTES * _ENTRY_BYTES)
    return sum(entry >= _PRESENT for entry in memoryview(entries).cast("Q")) >= _MIN_PRESENT
