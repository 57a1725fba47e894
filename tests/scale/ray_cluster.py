"""Ray on this machine, with the gateway deployed as a user deploys it."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from openai_frontend.cli import main
from scripts.setup import clients
from tests.gateway_process import ROOT
from tests.ports import free_port

PYTHON = ROOT / clients.CLIENTS / "ray" / "bin" / "python"
_BIN = PYTHON.parent
# Nothing outside of this machine, and a quick stop. Ray's own tokens are not what is tested.
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",
}
_START_S = 480


class Cluster:
    """A started application."""

    def __init__(
        self, folder: Path, url: str, processes: psutil.Process, environment: Mapping[str, str]
    ) -> None:
        self.folder = folder
        self.url = url
        self._ray = processes
        self._environment = environment

    def update(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Deploy gateway.yaml with changed `args`. Returns before the replicas have changed."""
        _change(self.folder / "gateway.yaml", change)
        _deploy(self.folder, self._environment)

    def replicas(self) -> list[psutil.Process]:
        """The processes of the gateways."""
        children = self._ray.children(recursive=True)
        return [each for each in children if each.name().startswith("ray::ServeRepl")]

    def haproxy(self) -> list[int]:
        """The process ids of its workers."""
        children = self._ray.children(recursive=True)
        return [each.pid for each in children if each.name() == "haproxy"]

    def names(self, requests: int = 24) -> set[str]:
        """The replicas that answer at the moment; empty names are Ray's own proxy."""
        answers = [httpx.get(f"{self.url}/v1/models", timeout=20) for _ in range(requests)]
        return {answer.headers.get("x-served-by", "") for answer in answers}

    def wait_for(self, count: int) -> set[str]:
        """The names, once so many replicas answer."""
        return self._wait(lambda names: len(names) == count, f"there are not {count} replicas")

    def wait_until_seen(self, count: int) -> set[str]:
        """The names, once so many have answered at some time. HAProxy sends all requests to a new
        replica while the others have streams.
        """
        seen: set[str] = set()

        def enough(names: set[str]) -> bool:
            seen.update(names)
            return len(seen) >= count

        self._wait(enough, f"{count} replicas have not answered")
        return seen

    def only_replica(self) -> psutil.Process:
        """The process, once there is one: others no longer answer, but finish their requests."""
        deadline = time.monotonic() + _START_S
        while len(found := self.replicas()) != 1 and time.monotonic() < deadline:
            time.sleep(0.5)
        [replica] = found
        return replica

    def wait_for_others(self, names: set[str]) -> set[str]:
        """The names, once as many replicas answer, and none of these."""
        return self._wait(
            lambda now: len(now) == len(names) and not now & names,
            f"the replicas are not replaced: {names}",
        )

    def _wait(self, done: Callable[[set[str]], bool], otherwise: str) -> set[str]:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            try:
                names = self.names()
            except httpx.TransportError:
                names = set()
            if done(names) and "" not in names:
                return names
            time.sleep(0.5)
        raise AssertionError(f"{otherwise}\n{self.log()}")

    def log(self) -> str:
        return (self.folder / "serve.log").read_text()


@contextmanager
def started(
    folder: Path, models: Path, *options: str, replicas: int, **settings: Any
) -> Iterator[Cluster]:
    """The models behind Ray's HAProxy, as `ray init` describes them."""
    port = free_port()
    arguments = ["ray", "init", str(models), f"--output={folder}", f"--port={port}"]
    counts = [f"--min-replicas={replicas}", f"--max-replicas={replicas}", "--num-cpus=0.1"]
    assert main([*arguments, *counts, *options]) == 0
    _change(folder / "gateway.yaml", lambda given: given["settings"].update(settings))
    variables = environment(folder)
    address = f"127.0.0.1:{free_port()}"
    with (folder / "ray.log").open("w") as output:
        ray = subprocess.Popen(
            [_BIN / "ray", *_start(address)],
            env=variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    process = psutil.Process(ray.pid)
    try:
        variables = {**variables, "RAY_ADDRESS": address}
        _deploy(folder, variables)
        yield Cluster(folder, f"http://127.0.0.1:{port}", process, variables)
    finally:
        # Ray's own stop takes half a minute, and leaves HAProxy, which is in another session.
        for each in [*process.children(recursive=True), process]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        ray.wait()


def _change(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document = yaml.safe_load(file.read_text())
    change(document["applications"][0]["args"])
    file.write_text(yaml.safe_dump(document))


def environment(folder: Path) -> dict[str, str]:
    """This process's, with the variables of ray.env."""
    command = f"set -a; . {folder / 'ray.env'}; set +a; env -0"
    inherited = {**os.environ, **_ENVIRONMENT}
    for name in ("METRICS", "STATS"):
        inherited[f"RAY_SERVE_HAPROXY_{name}_PORT"] = str(free_port())
    output = subprocess.check_output(["/bin/sh", "-c", command], text=True, env=inherited)
    return dict(line.split("=", 1) for line in output.split("\0") if line)


def _start(address: str) -> list[str]:
    """Ray's dashboard is not needed to serve."""
    return [
        "start", "--head", "--block", "--node-ip-address=127.0.0.1",
        f"--port={address.rpartition(':')[2]}", "--num-cpus=2", "--include-dashboard=false",
        f"--ray-client-server-port={free_port()}", "--disable-usage-stats",
        "--min-worker-port=20000", "--max-worker-port=20999",
    ]  # fmt: skip


def _deploy(folder: Path, environment: Mapping[str, str]) -> None:
    """Fails with the log."""
    deadline = time.monotonic() + _START_S
    command = [str(_BIN / "serve"), "run", "--non-blocking", str(folder / "gateway.yaml")]
    while True:  # Ray may still be starting
        with (folder / "serve.log").open("w") as output:
            result = subprocess.run(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False
            )
        if result.returncode == 0:
            return
        log = (folder / "serve.log").read_text()
        if time.monotonic() > deadline or "onnect" not in log:
            raise AssertionError(log)
        time.sleep(1)
