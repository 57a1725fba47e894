"""Notifications to systemd, read from a real datagram socket."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from openai_frontend.server.systemd import SystemdNotifier


@contextmanager
def manager_at(address: str) -> Iterator[socket.socket]:
    """Listens like systemd; `@` is an abstract name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + address[1:] if address.startswith("@") else address)
        listener.settimeout(30)
        yield listener


def told(listener: socket.socket) -> list[str]:
    return listener.recv(4096).decode().split("\n")


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_path_and_abstract_sockets(tmp_path: Path, kind: str) -> None:
    """Managers of containers use abstract names."""
    address = str(tmp_path / "n") if kind == "path" else f"@openai-frontend-{os.getpid()}"

    with manager_at(address) as listener, closing(SystemdNotifier(address)) as manager:
        manager.ready("Serving a, b")
        got = told(listener)

    assert got == ["READY=1", "STATUS=Serving a, b"]


def test_stopping_extends_the_timeout(tmp_path: Path) -> None:
    """In microseconds."""
    with (
        manager_at(str(tmp_path / "n")) as listener,
        closing(SystemdNotifier(str(tmp_path / "n"))) as manager,
    ):
        manager.stopping(41.5)
        got = told(listener)

    assert got == ["STOPPING=1", "EXTEND_TIMEOUT_USEC=41500000", "STATUS=Draining"]


def test_status_is_one_line(tmp_path: Path) -> None:
    """A model's error cannot forge another assignment."""
    with (
        manager_at(str(tmp_path / "n")) as listener,
        closing(SystemdNotifier(str(tmp_path / "n"))) as manager,
    ):
        manager.ready("not ready: x\nSTOPPING=1")
        got = told(listener)

    assert got == ["READY=1", "STATUS=not ready: x STOPPING=1"]


def test_variables_are_removed_from_the_environment() -> None:
    """A child that inherited them would notify for this process."""
    environment = {
        "NOTIFY_SOCKET": "/nowhere",
        "WATCHDOG_USEC": "20000000",
        "WATCHDOG_PID": str(os.getpid()),
        "HOME": "/",
    }

    SystemdNotifier.from_environment(environment)

    assert environment == {"HOME": "/"}


async def test_watchdog_pings(tmp_path: Path) -> None:
    """Two per watchdog interval."""
    environment = {"NOTIFY_SOCKET": str(tmp_path / "n"), "WATCHDOG_USEC": "100000"}

    address = environment["NOTIFY_SOCKET"]
    with (
        manager_at(address) as listener,
        closing(SystemdNotifier.from_environment(environment)) as manager,
    ):
        living = asyncio.create_task(manager.send_watchdog_pings())
        begun_s = time.monotonic()
        got = [await asyncio.to_thread(told, listener) for _ in range(4)]
        took_s = time.monotonic() - begun_s
        living.cancel()

    assert got == [["WATCHDOG=1"]] * 4
    assert took_s >= 3 * 0.04


@pytest.mark.parametrize("variables", [{}, {"WATCHDOG_USEC": "100000", "WATCHDOG_PID": "1"}])
async def test_no_watchdog_pings(
    variables: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Without a watchdog, or with one of another process, there are none."""
    manager = SystemdNotifier.from_environment({"NOTIFY_SOCKET": "/nowhere", **variables})

    with caplog.at_level(logging.WARNING):
        await asyncio.wait_for(manager.send_watchdog_pings(), 30)

    assert caplog.records == []  # a failed notification would be logged


def test_failed_notification_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And the process continues."""

    SystemdNotifier(str(tmp_path / "n")).ready("Serving")

    [record] = caplog.records
    assert record.getMessage().startswith("cannot notify systemd of READY=1: ")


def test_without_systemd_nothing_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    SystemdNotifier.from_environment({}).ready("Serving")

    assert caplog.records == []
