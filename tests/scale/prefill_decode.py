"""A prefill and a decode server with vLLM on this machine, and what is between the two."""

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from scripts.setup import clients
from scripts.setup.install import site_packages
from tests.fast.auth import key_files
from tests.gateway_process import ROOT, GatewayProcess
from tests.ports import free_port

NIXL = ROOT / site_packages(clients.CLIENTS / "nixl")
DEMO = ROOT / "model_repository" / "demo"
LEASE_S = 6
BLOCK = 32  # tokens
KEY, OTHER_KEY = "sk-" + "t" * 40, "sk-" + "o" * 40


class Proxy(ThreadingHTTPServer):
    """Passes a decode server's requests on to a prefill server. Tests change the replies."""

    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _ProxyHandler)
        self.target = target
        self.change: Callable[[bytes], bytes] = lambda reply: reply  # of a prefill

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @contextmanager
    def changing(self, change: Callable[[bytes], bytes]) -> Iterator[None]:
        before, self.change = self.change, change
        try:
            yield
        finally:
            self.change = before


class _ProxyHandler(BaseHTTPRequestHandler):
    server: Proxy
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._pass_on(b"")

    def do_POST(self) -> None:
        self._pass_on(self.rfile.read(int(self.headers["content-length"])))

    def _pass_on(self, body: bytes) -> None:
        headers = {"authorization": self.headers["authorization"]}
        if body:
            headers["content-type"] = "application/json"
        try:
            reply = httpx.request(
                self.command,
                self.server.target + self.path,
                content=body,
                headers=headers,
                timeout=60,
            )
        except httpx.TransportError:  # the prefill server is down: so is the way to it
            self.close_connection = True
            return
        content = self.server.change(reply.content) if body else reply.content
        with contextlib.suppress(ConnectionError):  # the decode server does not wait any longer
            self._write(reply.status_code, content)

    def _write(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """The tests' output has enough lines."""


def write_model(repository: Path, role: str) -> None:
    """The demo model with the connector in this role."""
    shutil.copytree(DEMO, repository / "demo", ignore=shutil.ignore_patterns("weights"))
    path = repository / "demo" / "1" / "model.json"
    arguments = json.loads(path.read_text()) | {
        "model": str(DEMO / "1" / "weights"),
        "kv_transfer_config": {
            "kv_connector": "NixlConnector",
            "kv_role": role,
            "kv_connector_extra_config": {"kv_lease_duration": LEASE_S},
        },
    }
    path.write_text(json.dumps(arguments))


def metrics(gateway: GatewayProcess) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = httpx.get(f"{gateway.url}/metrics").text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@dataclass
class Pair:
    """The two servers. A test may kill one and must start it again."""

    folder: Path
    proxy: Proxy
    running: dict[str, GatewayProcess] = field(default_factory=dict)
    ports: Mapping[str, int] = field(
        default_factory=lambda: {name: free_port() for name in ("p", "d", "listener", "decode")}
    )

    def start(self, role: str) -> GatewayProcess:
        options = {
            "prefill": (
                f"--transfer-port={self.ports['listener']}",
                f"--keys-file={self.folder / 'keys.yaml'}",
                "--public-metrics",
            ),
            "decode": (f"--prefill-peers={self.proxy.url}", f"--remote-prefill-min-tokens={BLOCK}"),
        }
        self.running[role] = GatewayProcess(
            self.folder / role,
            self.folder / f"{role}.log",
            f"--role={role}",
            *options[role],
            environment={
                "PYTHONPATH": str(NIXL),
                "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.ports[role[0]]),
                **({"OPENAI_FRONTEND_TRANSFER_KEY": KEY} if role == "decode" else {}),
            },
            port=None if role == "prefill" else self.ports["decode"],
        )
        return self.running[role]

    @property
    def listener(self) -> str:
        return f"http://127.0.0.1:{self.ports['listener']}"

    def ask(self, role: str, prompt: list[int], **fields: Any) -> httpx.Response:
        body = {"model": "demo", "prompt": prompt, "max_tokens": 16, "temperature": 0} | fields
        return httpx.post(
            f"{self.running[role].url}/v1/completions",
            json=body,
            headers=key_files.bearer(KEY) if role == "prefill" else {},
            timeout=120,
        )

    def value(self, role: str, name: str, **labels: str) -> float:
        """The sum over the series of a metric that have these labels."""
        wanted = set(labels.items())
        found = metrics(self.running[role]).items()
        return sum(value for (each, has), value in found if each == name and wanted <= has)

    def wait_for(self, role: str, name: str, value: float, timeout_s: float = 60) -> float:
        """Seconds until the metric has this value."""

        begun_s = time.monotonic()
        while (found := self.value(role, name)) != value:
            assert time.monotonic() - begun_s < timeout_s, f"{name} is {found}, not {value}"
            time.sleep(0.1)
        return time.monotonic() - begun_s


@contextmanager
def running(folder: Path) -> Iterator[Pair]:
    """Both servers, ready; they end with the block."""
    key_files.write(
        folder / "keys.yaml",
        key_files.key("decode", secret=KEY, scopes=frozenset({"transfer", "inference"})),
        key_files.key("client", secret=OTHER_KEY, scopes=frozenset({"inference", "admin"})),
    )
    write_model(folder / "prefill", "kv_producer")
    write_model(folder / "decode", "kv_consumer")
    with Proxy("") as proxy:
        pair = Pair(folder, proxy)
        proxy.target = pair.listener
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            for role in ("prefill", "decode"):
                pair.start(role)
            for each in pair.running.values():
                each.wait_until_ready()
            pair.running["decode"].wait_for_line("prefill server is up")
            yield pair
        finally:
            with ThreadPoolExecutor() as stopping:
                list(stopping.map(GatewayProcess.__exit__, pair.running.values()))
            proxy.shutdown()
