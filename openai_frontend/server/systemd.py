"""Tells a service manager how the process stands, in the words of sd_notify(3)."""

import asyncio
import logging
import os
import socket
from collections.abc import MutableMapping

logger = logging.getLogger(__name__)

_SEND_TIMEOUT_S = 0.1  # the manager's buffer is large; the event loop waits no longer for it


class SystemdNotifier:
    """Where none has started the process, nobody is told."""

    def __init__(self, address: str | None = None, *, watchdog_s: float | None = None) -> None:
        """`address`: a path, or `@` and an abstract name. `watchdog_s`: seconds without a sign of
        life after which the manager ends the process; None: it does not.
        """
        self._address = address
        self._watchdog_s = watchdog_s
        self._socket: socket.socket | None = None

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> "SystemdNotifier":
        """The one that has started this process. Its variables go: children have none."""
        address = environment.pop("NOTIFY_SOCKET", None)
        watched = environment.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watchdog_us = environment.pop("WATCHDOG_USEC", None)
        watchdog_s = int(watchdog_us) / 1e6 if watchdog_us and watched else None
        return cls(address, watchdog_s=watchdog_s)

    def ready(self, status: str) -> None:
        """The models are loaded, the port listens."""
        self._tell("READY=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """What `systemctl status` shows."""
        self._tell(f"STATUS={status}")

    def stopping(self, within_s: float) -> None:
        """The process ends, in so many seconds at most: the manager should not kill it before."""
        extension = f"EXTEND_TIMEOUT_USEC={int(within_s * 1e6)}"
        self._tell("STOPPING=1", extension, "STATUS=Draining")

    async def send_watchdog_pings(self) -> None:
        """For ever, where the manager waits for them; from the loop, so that its halt is seen."""
        if self._watchdog_s is None:
            return
        while True:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self._watchdog_s / 2)

    def _tell(self, *assignments: str) -> None:
        if self._address is None:
            return
        message = "\n".join(" ".join(each.split("\n")) for each in assignments)
        try:
            self._connected().send(message.encode())
        except OSError as error:
            logger.warning("the service manager cannot be told %s: %s", assignments[0], error)
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
        """Nothing is told any more."""
        self._address = None
        self._disconnect()

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _name(address: str) -> str:
    return "\0" + address[1:] if address.startswith("@") else address
