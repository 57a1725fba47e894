"""Ports for servers that this project's tests and benchmarks start."""

import atexit
import itertools
import random
import socket
from collections import deque
from collections.abc import Iterator
from pathlib import Path


def free_port() -> int:
    """A port on which no process listens, and which nothing else that asks here gets while this
    process runs, so that a server may be started on it late, or again.

    It is below those that the kernel gives to connections and to listeners on port 0.
    """
    for port in itertools.islice(_ports, 10_000):
        # A name without a file, which ends with this process; no other can bind it too.
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0openai-frontend tests, port {port}")
            with socket.socket() as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        if len(_claims) > _MOST_CLAIMS:
            _claims.popleft().close()
        return port
    raise AssertionError("no port is free")


def _all_ports() -> Iterator[int]:
    """All of the range again and again, from a random one on."""
    lowest_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    first, count = 21_000, min(lowest_ephemeral, 32_000) - 21_000  # Ray's workers are below
    assert count > 0, f"the kernel gives connections ports from {lowest_ephemeral} on"
    start = random.randrange(count)
    return (first + (start + number) % count for number in itertools.count())


_ports = _all_ports()
_claims: deque[socket.socket] = deque()
_MOST_CLAIMS = 64  # those before have been used, or given up


@atexit.register
def _give_up_claims() -> None:
    for claim in _claims:
        claim.close()
