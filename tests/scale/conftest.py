"""Three gateways with the mock engine on one machine, and a router in front of them."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import mock_models
from tests.api.conformance.gateway import TOKENS
from tests.gateway_process import GatewayProcess
from tests.ports import free_port
from tests.resilience.faults import gated_engine
from tests.resilience.faults.gate import Gate
from tests.scale import agent_sessions, routers
from tests.scale.routers import Router

# smg knows only the first of them, by name.
MODELS: dict[str, dict[str, Any]] = {
    "mock": {"tokens": TOKENS, "answer_tokens": 12, "prefix_cache_blocks": 4096},
    "slow": {"tokens": [" token"], "tokens_per_second": 20},
    "waiting": {},
}
# So few that a test can fill a gateway: the slots, and the queue of a gateway behind a router.
SLOTS, QUEUE = 8, 2


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="the long form of tests/scale")


@dataclass
class Replicas:
    """The gateways by name. A test may stop one and must start it again."""

    folder: Path
    running: dict[str, GatewayProcess]
    event_ports: dict[str, int]  # of the KV events of `mock`

    def start(self, name: str, port: int | None = None) -> GatewayProcess:
        options = (
            f"--replica-name={name}",
            "--behind-router",
            f"--max-concurrent-requests={SLOTS}",
        )
        self.running[name] = GatewayProcess(
            self._models(name), self.folder / f"{name}.log", *options, port=port
        )
        return self.running[name]

    def _models(self, name: str) -> Path:
        """Each gateway has its own, because two cannot publish on one port."""
        endpoint = f"tcp://[::ffff:127.0.0.1]:{self.event_ports.setdefault(name, free_port())}"
        events = {"enable_kv_cache_events": True, "endpoint": endpoint}
        folder = self.folder / name
        gates = {"answer": self.gate(name)}
        mock_models.write_with_turns(folder, agent_sessions.MODEL, **agent_sessions.SCRIPT)
        for model, arguments in MODELS.items():
            more = {"kv_events_config": events} if model == "mock" else {}
            if model == "waiting":
                gated_engine.write(folder, model, gates)
            else:
                mock_models.write_with_tokenizer(folder, model, **arguments, **more)
        return folder

    def gate(self, name: str) -> Gate:
        """While it is closed, `waiting` gives no answers on this gateway."""
        return Gate(self.folder / f"{name}.gate")


@pytest.fixture(scope="session")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    folder = tmp_path_factory.mktemp("replicas")
    started = Replicas(folder, {}, {})
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
