"""Starts helper processes: each runs one function, named `module:function`, with a socket."""

import contextlib
import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import IO, Any, Protocol, cast

# Not `-m MODULE`: what the module's package imports may have imported it already
_PROGRAM = "from openai_frontend.runtime.helper_process import main; main()"
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # such processes fork


class HelperProcess(Protocol):
    """A process that was started."""

    @property
    def pid(self) -> int | None:
        """Its process id."""

    def kill(self) -> None:
        """Send SIGKILL."""

    def wait(self) -> object:
        """Block until it has ended."""


Launch = Callable[[str, socket.socket, tuple[Any, ...]], HelperProcess]


def launch(function: str, connection: socket.socket, arguments: tuple[Any, ...]) -> HelperProcess:
    """Start a Python process that calls `function` with the connection and the arguments, which are
    pickled. It has a session of its own, so Ctrl-C in a terminal does not reach it.
    """
    environment = {**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(  # noqa: S603  this interpreter and our own module
        [sys.executable, "-P", "-c", _PROGRAM, function, str(connection.fileno())],
        stdin=subprocess.PIPE,
        pass_fds=[connection.fileno()],
        env=environment,
        start_new_session=True,
    )
    with contextlib.suppress(BrokenPipeError), cast("IO[bytes]", process.stdin) as pipe:
        pipe.write(pickle.dumps(arguments))
    return process


def call(function: str, connection: socket.socket, arguments: tuple[Any, ...]) -> None:
    """Import and call a function that is named `module:function`, in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent ends it
    module, _, name = function.partition(":")
    getattr(importlib.import_module(module), name)(connection, *arguments)


def main() -> None:
    """Run the process that `launch` starts."""
    function, descriptor = sys.argv[1:]
    arguments = pickle.loads(sys.stdin.buffer.read())  # noqa: S301  of our own parent
    call(function, socket.socket(fileno=int(descriptor)), arguments)
