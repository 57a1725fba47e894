"""The process listens on one port only: it starts none of Triton's HTTP, gRPC or metrics servers
and no shared memory that a client could name (CVE-2025-23319, CVE-2025-23320, CVE-2025-23334).

tests/security/test_backend_errors.py covers the other half: the error texts of a backend.
"""

import json
import socket
from pathlib import Path

import psutil
import pytest

from tests.security.guarded import check_refused, message_of


def test_the_process_listens_on_one_socket(guarded):
    """Its address is the one in the settings."""
    process = psutil.Process(guarded.process.pid)

    listening = [
        each.laddr
        for family in ("inet", "unix")
        for each in process.net_connections(family)
        if each.status == psutil.CONN_LISTEN or (family == "unix" and each.laddr)
    ]

    assert listening == [("127.0.0.1", guarded.process.port)]


@pytest.mark.parametrize("port", [8000, 8001, 8002])
def test_the_process_does_not_use_the_default_ports_of_triton(guarded, port):
    owners = {
        each.pid
        for each in psutil.net_connections("inet")
        if each.status == psutil.CONN_LISTEN and each.laddr.port == port
    }

    assert guarded.process.pid not in owners


def test_the_process_maps_no_named_shared_memory(guarded):
    maps = Path(f"/proc/{guarded.process.pid}/maps").read_text()

    assert [line for line in maps.splitlines() if "shm/triton" in line] == []


ADDRESSES = [
    "POST /v2/systemsharedmemory/region/x/register",
    "POST /v2/systemsharedmemory/unregister",
    "GET /v2/systemsharedmemory/status",
    "POST /v2/cudasharedmemory/region/x/register",
]


@pytest.mark.parametrize("line", ADDRESSES)
def test_triton_extensions_that_reach_the_machine_are_not_available(guarded, line):
    """They get a 404, 405 or 501."""
    region = {"key": "/triton_python_backend_shm_region_1", "byte_size": 2**40, "offset": 0}

    response = guarded.ask(line, json.dumps(region).encode() if line.startswith("POST") else b"")

    check_refused(response, 404, 405, 501)


@pytest.mark.parametrize("name", ["log_file", "trace_file"])
def test_settings_cannot_name_a_file(guarded, tmp_path, name):
    """A client that changes log or trace settings is refused by name and writes no file."""
    written = tmp_path / "written"
    path = "/v2/logging" if name == "log_file" else "/v2/trace/setting"

    response = guarded.ask(f"POST {path}", json.dumps({name: str(written)}).encode())

    check_refused(response, 501, echoed=str(written))
    assert name in message_of(response)
    assert not written.exists()


def test_the_http2_preface_of_grpc_gets_400(guarded):
    with socket.create_connection(("127.0.0.1", guarded.process.port), timeout=60) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        answer = connection.recv(65536)

    assert answer.startswith(b"HTTP/1.1 400")
