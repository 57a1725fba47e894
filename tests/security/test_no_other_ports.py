"""The process listens on its one port: no HTTP, gRPC or metrics server of Triton's, no shared
memory that a client could name (CVE-2025-23319, CVE-2025-23320, CVE-2025-23334).

tests/security/test_backend_errors.py has the other half: what a backend says of its failures.
"""

import json
import socket
from pathlib import Path

import psutil
import pytest

from tests.security.guarded import check_refused


def test_listening(guarded):
    """One socket, on the address that the settings name."""
    process = psutil.Process(guarded.process.pid)

    listening = [
        each.laddr
        for family in ("inet", "unix")
        for each in process.net_connections(family)
        if each.status == psutil.CONN_LISTEN or (family == "unix" and each.laddr)
    ]

    assert listening == [("127.0.0.1", guarded.process.port)]


@pytest.mark.parametrize("port", [8000, 8001, 8002])
def test_tritons_ports(guarded, port):
    """Nothing of this process answers on Triton's usual ports."""
    owners = {
        each.pid
        for each in psutil.net_connections("inet")
        if each.status == psutil.CONN_LISTEN and each.laddr.port == port
    }

    assert guarded.process.pid not in owners


def test_shared_memory(guarded):
    """The process has mapped none that others could open by a name."""
    maps = Path(f"/proc/{guarded.process.pid}/maps").read_text()

    assert [line for line in maps.splitlines() if "shm/triton" in line] == []


ADDRESSES = [
    "POST /v2/systemsharedmemory/region/x/register",
    "POST /v2/systemsharedmemory/unregister",
    "GET /v2/systemsharedmemory/status",
    "POST /v2/cudasharedmemory/region/x/register",
    "POST /v2/trace/setting",
    "POST /v2/logging",
]


@pytest.mark.parametrize("line", ADDRESSES)
def test_extensions(guarded, tmp_path, line):
    """Triton's extensions that reach the machine say that they are not here."""
    written = tmp_path / "written"
    region = {"key": "/triton_python_backend_shm_region_1", "byte_size": 2**40, "offset": 0}
    files = {"log_file": str(written), "trace_file": str(written)}
    body = json.dumps({**region, **files}).encode()

    response = guarded.ask(line, body if line.startswith("POST") else b"")

    check_refused(response, 404, 405, 501)
    assert not written.exists()


def test_other_protocols(guarded):
    """gRPC's preface on the port is no HTTP that we speak."""
    with socket.create_connection(("127.0.0.1", guarded.process.port), timeout=10) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        answer = connection.recv(65536)

    assert answer.startswith(b"HTTP/1.1 400")
