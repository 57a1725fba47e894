"""Three gateways behind a deployment's own HAProxy: as processes, or as replicas of Ray Serve."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from tests import mock_models
from tests.gateway_process import GatewayProcess
from tests.scale import ray_cluster, routers
from tests.scale.ray_cluster import Cluster

GATEWAYS = 3  # as in the configurations of deploy/


class Fleet(Protocol):
    """Gateways that clients reach at one port."""

    @property
    def port(self) -> int: ...

    def kill(self) -> None:
        """SIGKILL to one of them; another one takes its place."""

    def roll(self) -> None:
        """Replace all of them. Returns once only new ones serve."""


class Processes:
    """The recipe of docs/scale.md: a supervisor restarts a gateway on its own port."""

    def __init__(self, folder: Path, options: Sequence[str]) -> None:
        self._folder = folder
        self._options = options
        self.running = [self._start(number) for number in range(GATEWAYS)]
        self.port = 0  # of the router

    def _start(self, number: int, port: int | None = None) -> GatewayProcess:
        options = (f"--replica-name=gateway{number}", "--behind-router", *self._options)
        log = self._folder / f"gateway{number}.log"
        return GatewayProcess(self._folder / "models", log, *options, port=port)

    def kill(self) -> None:
        self._end(0, signal.SIGKILL)

    def roll(self) -> None:
        for number in range(GATEWAYS):
            self._end(number, signal.SIGTERM)
            self.running[number].wait_until_ready()

    def _end(self, number: int, how: signal.Signals) -> None:
        ended = self.running[number]
        ended.send_signal(how)
        ended.wait(timeout_s=300)
        self.running[number] = self._start(number, ended.port)

    def stop(self) -> None:
        for each in self.running:
            if not each.ended():
                each.stop()


@contextmanager
def processes(
    folder: Path, *options: str, router: str = "haproxy", **model: Any
) -> Iterator[Fleet]:
    """Three gateways with the mock engine behind a router of `deploy/`."""
    mock_models.write_with_tokenizer(folder / "models", "mock", **model)
    fleet = Processes(folder, options)
    try:
        for each in fleet.running:
            each.wait_until_ready()
        ports = [each.port for each in fleet.running]
        with routers.running(routers.STARTS[router], folder, ports) as started:
            fleet.port = started.port
            yield fleet
    finally:
        fleet.stop()


class Replicas:
    """Those of Ray Serve, which replaces them by itself."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.port = int(cluster.url.rpartition(":")[2])

    def kill(self) -> None:
        self.cluster.replicas()[0].kill()

    def roll(self) -> None:
        """A changed setting replaces all."""
        names = self.cluster.wait_for(GATEWAYS)

        def change(arguments: dict[str, Any]) -> None:
            arguments["settings"]["graceful_shutdown_timeout_s"] = 301

        self.cluster.update(change)
        self.cluster.wait_for_others(names)


@contextmanager
def replicas(folder: Path, *, count: int = GATEWAYS, **model: Any) -> Iterator[Replicas]:
    """Replicas with the mock engine. Those that are replaced may finish long streams."""
    models = folder / "models"
    mock_models.write_with_tokenizer(models, "mock", **model)
    with ray_cluster.started(
        folder, models, replicas=count, graceful_shutdown_timeout_s=300
    ) as cluster:
        cluster.wait_for(count)
        yield Replicas(cluster)
