"""Settings of the process itself that change while it runs."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from openai_frontend.app import create_app
from openai_frontend.cli.banner import ListenAddress
from openai_frontend.cli.process import GatewayProcess, ShutdownTimeouts
from openai_frontend.cli.serve import process_of, take_up
from openai_frontend.server.protocol_limits import ProtocolLimits
from openai_frontend.settings import Settings
from openai_frontend.triton import Options, Server
from tests.process_state import log_restored

# Those that a request shows are in tests/routers/test_changed_settings.py
CONNECTIONS: dict[str, Any] = {
    "max_header_bytes": 2048, "max_body_chunks": 3, "max_connections": 4, "header_timeout_s": 5,
    "body_timeout_s": 6, "request_timeout_s": 7, "send_timeout_s": 8,
}  # fmt: skip
SHOWN = {
    "keep_alive_timeout_s",
    "drain_delay_s",
    "graceful_shutdown_timeout_s",
    "log_level",
} | CONNECTIONS.keys()


@pytest.fixture(autouse=True)
def _own_log() -> Iterator[None]:
    """The levels of loggers are the process', and so the suite's."""
    with log_restored():
        yield


async def after(settings: Settings) -> GatewayProcess:
    """A process of default settings that has taken up others."""
    app = create_app(Settings(), Server(Options(model_repositories=[])))
    process = process_of(app, Settings(), ListenAddress("http://localhost/v1"))
    process.config.load()
    await take_up(app, process, settings)
    app.state.registry.close()
    return process


async def test_the_times_of_a_stop() -> None:
    """The next signal waits as long as the new settings say."""

    process = await after(Settings(drain_delay_s=2, graceful_shutdown_timeout_s=3))

    assert process.stop_times == ShutdownTimeouts(2, 3)


async def test_connections() -> None:
    """New ones idle for another time; their limits hold for those that are there, too."""

    process = await after(Settings(keep_alive_timeout_s=9, **CONNECTIONS))

    protocol: Any = process.config.http_protocol_class
    assert process.config.timeout_keep_alive == 9
    assert protocol.limits == ProtocolLimits(**CONNECTIONS)


async def test_the_log() -> None:
    """Another level, at once."""

    await after(Settings(log_level="error"))

    assert not logging.getLogger("openai_frontend.app").isEnabledFor(logging.WARNING)
