"""Notifies systemd of the state of the process (sd_notify(3))."""

import asyncio
import logging
import os
import socket
from collections.abc import MutableMapping

logger = logging.getLogger(__name__)

_SEND_TIMEOUT_S = 0.1  # the socket's buffer is large, so sending rarely blocks the event loop


class SystemdNotifier:
    """Does nothing if the process was not started by systemd."""

    def __init__(self, address: str | None = None, *, watchdog_s: float | None = None) -> None:
        """`address`: a path, or `@` and an abstract name. `watchdog_s`: systemd ends the process if
        it gets no ping for this time; None: it does not.
        """
        self._address = address
        self._watchdog_s = watchdog_s
        self._socket: socket.socket | None = None

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> "SystemdNotifier":
        """Removes the variables, so that child processes do not inherit them."""
        address = environment.pop("NOTIFY_SOCKET", None)
        watched = environment.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watchdog_us = environment.pop("WATCHDOG_USEC", None)
        watchdog_s = int(watchdog_us) / 1e6 if watchdog_us and watched else None
        return cls(address, watchdog_s=watchdog_s)

    def ready(self, status: str) -> None:
        """The models are loaded, and the port listens. `systemctl status` shows the status."""
        self._notify("READY=1", f"STATUS={status}")

    def stopping(self, within_s: float) -> None:
        """The process stops within `within_s`; systemd must not kill it before."""
        extension = f"EXTEND_TIMEOUT_USEC={int(within_s * 1e6)}"
        self._notify("STOPPING=1", extension, "STATUS=Draining")

    async def send_watchdog_pings(self) -> None:
        """Runs until it is cancelled, on the event loop, so that a blocked loop is detected."""
        if self._watchdog_s is None:
            return
        while True:
            self._notify("WATCHDOG=1")
            await asyncio.sleep(self._watchdog_s / 2)

    def _notify(self, *assignments: str) -> None:
        if self._address is None:
            return
        message = "\n".join(" ".join(each.split("\n")) for each in assignments)
        try:
            self._connected().send(message.encode())
        except OSError as error:
            logger.warning("cannot notify systemd of %s: %s", assignments[0], error)
            self._disconnect()

    def _connected(self) -> socket.socket:
        if self._socket is None:
            channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            channel.settimeout(_SEND_TIMEOUT_S)
            try:
                channel.connect(_name(self._address or ""))
            except OSError:
                channel.close()
                raise
            self._socket = channel
        return self._socket

    def close(self) -> None:
        self._address = None
        self._disconnect()

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _name(address: str) -> str:
    return "\0" + address[1:] if address.startswith("@") else address
