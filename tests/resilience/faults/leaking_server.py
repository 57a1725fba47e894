"""A program with a gateway's /metrics that leaks the resource named by a request's path.

It proves that tests/resilience/faults/invariants.py can fail. It prints its port and exits when its
stdin closes.
"""

import asyncio
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEPT: list[object] = []
IN_HAND = {
    "openai_frontend_requests_running": 0,
    "openai_frontend_unreleased_requests": 0,
    "openai_frontend_buffered_body_bytes": 0,
    "openai_frontend_buffered_audio_bytes": 0,
    "nv_inference_pending_request_count": 0,
}


# Each connection that ends between two looks hides a thread and a descriptor: on a busy machine,
# all those that the check opens at once.
MANY = 80


def keep_thread() -> None:
    """Leave threads running."""
    for _ in range(MANY):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def keep_descriptor() -> None:
    """Leave files open."""
    KEPT.extend(os.open("/dev/null", os.O_RDONLY) for _ in range(MANY))


def keep_child() -> None:
    """Leave a child process that is never waited for."""
    KEPT.append(subprocess.Popen([sys.executable, "-c", ""]))


def keep_memory() -> None:
    """Keep 48 MiB of written memory."""
    KEPT.append(b"x" * 48 * 2**20)


def log_traceback() -> None:
    """Write a traceback as a logger does."""
    try:
        raise ValueError("deliberate")
    except ValueError:
        sys.excepthook(*sys.exc_info())


def drop_failed_task() -> None:
    """Make the event loop log that the task's exception was never retrieved."""

    async def fail() -> None:
        raise ValueError("deliberate")

    async def main() -> None:
        task = asyncio.create_task(fail())
        await asyncio.sleep(0)
        del task

    asyncio.run(main())


ACTIONS = {
    "/thread": keep_thread,
    "/descriptor": keep_descriptor,
    "/child": keep_child,
    "/memory": keep_memory,
    "/traceback": log_traceback,
    "/task": drop_failed_task,
    "/stuck": lambda: IN_HAND.update(openai_frontend_requests_running=1),
    "/unreleased": lambda: IN_HAND.update(openai_frontend_unreleased_requests=1),
    "/buffered": lambda: IN_HAND.update(openai_frontend_buffered_body_bytes=4096),
    "/pending": lambda: IN_HAND.update(nv_inference_pending_request_count=1),
    "/renamed": lambda: IN_HAND.pop("openai_frontend_requests_running"),
}


class Handler(BaseHTTPRequestHandler):
    """Serves `GET /metrics` and the actions."""

    def do_GET(self) -> None:
        """Run the action of the path and answer with the metrics."""
        ACTIONS.get(self.path, lambda: None)()
        lines = [f"# TYPE {name} gauge\n{name} {value}\n" for name, value in IN_HAND.items()]
        body = "".join(lines).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log no requests."""


class Server(ThreadingHTTPServer):
    """Accepts as many concurrent connections as the check opens."""

    request_queue_size = 256


def main() -> None:
    """Serve until stdin ends."""
    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
