"""Memory in huge pages: run in processes of their own, whose memory holds little else."""

import subprocess
import sys
from pathlib import Path

import pytest

from openai_frontend.runtime import huge_pages

PROGRAM = """
import mmap, os, sys
from pathlib import Path
from openai_frontend.runtime import huge_pages

def kib(name):
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))

full, sparse = (mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in "12")
step = os.sysconf("SC_PAGE_SIZE")
for offset in range(0, len(full), step):
    full[offset : offset + 8] = offset.to_bytes(8, "little")
for offset in range(0, len(sparse), 2 << 20):
    sparse[offset] = 1
huge_kib, used_kib = kib("AnonHugePages"), kib("Rss")
accepted = huge_pages.collapse(Path(sys.argv[1]))
for offset in range(0, len(full), step):
    assert int.from_bytes(full[offset : offset + 8], "little") == offset
print(accepted >> 20, kib("AnonHugePages") - huge_kib >> 10, kib("Rss") - used_kib >> 10)
"""


def collapsed(policy: Path) -> tuple[int, int, int]:
    """MiB that the kernel accepted, that are in huge pages since, and that are used since."""
    command = [sys.executable, "-c", PROGRAM, str(policy)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    accepted, huge, used = map(int, run.stdout.split())
    return accepted, huge, used


def test_full_memory_moves_and_sparse_memory_does_not(tmp_path):
    """What is in it stays, and the process needs no more memory."""
    policy = tmp_path / "enabled"
    policy.write_text("always [madvise] never")

    accepted, huge, used = collapsed(policy)

    if accepted == 0:
        pytest.skip("this kernel cannot collapse memory (Linux 6.1 can)")
    assert 60 <= huge <= accepted + 1
    assert used <= 8


@pytest.mark.parametrize("policy", ["always madvise [never]", None])
def test_machines_without_huge_pages_are_left_alone(policy, tmp_path):
    file = tmp_path / "enabled"
    if policy is not None:
        file.write_text(policy)

    assert huge_pages.collapse(file) == 0


def test_page_table_that_cannot_be_read_is_no_failure(tmp_path, caplog):
    """Such as that of a program with capabilities of its own."""
    policy = tmp_path / "enabled"
    policy.write_text("[always] madvise never")
    caplog.set_level("INFO")

    assert huge_pages.collapse(policy, tmp_path) == 0
    assert "memory stays in small pages" in caplog.text
