"""Three gateways with the mock engine on one machine, and a router in front of them."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import mock_models
from tests.api.conformance.gateway import TOKENS
from tests.gateway_process import GatewayProcess
from tests.scale import routers
from tests.scale.routers import Router

MODELS = {
    "mock": {"tokens": TOKENS, "answer_tokens": 12, "prefix_cache_blocks": 4096},
    "slow": {"tokens": [" token"], "tokens_per_second": 20},
}
# So few that a test can fill a gateway: the slots, and the queue of a gateway behind a router.
SLOTS, QUEUE = 8, 2


@dataclass
class Replicas:
    """The gateways by name. A test may stop one and must start it again."""

    folder: Path
    running: dict[str, GatewayProcess]

    def start(self, name: str, port: int | None = None) -> GatewayProcess:
        options = (
            f"--replica-name={name}",
            "--behind-router",
            f"--max-concurrent-requests={SLOTS}",
        )
        self.running[name] = GatewayProcess(
            self.folder / "models", self.folder / f"{name}.log", *options, port=port
        )
        return self.running[name]


@pytest.fixture(scope="session")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    folder = tmp_path_factory.mktemp("replicas")
    for name, arguments in MODELS.items():
        mock_models.write_with_tokenizer(folder / "models", name, **arguments)
    started = Replicas(folder, {})
    with ExitStack() as processes:
        for number in (1, 2, 3):
            started.start(f"gateway{number}")
        processes.callback(lambda: [each.stop() for each in started.running.values()])
        for each in started.running.values():
            each.wait_until_ready()
        yield started


@pytest.fixture(scope="module", params=routers.STARTS)
def router(
    request: pytest.FixtureRequest, replicas: Replicas, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Router]:
    ports = [each.port for each in replicas.running.values()]
    start = routers.STARTS[request.param]
    with routers.running(start, tmp_path_factory.mktemp("router"), ports) as started:
        yield started
