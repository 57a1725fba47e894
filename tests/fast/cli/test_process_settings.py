"""The process applies the settings that no request shows."""

from typing import Any

from openai_frontend.app import create_app
from openai_frontend.cli.banner import ListenAddress
from openai_frontend.cli.serve import create_process
from openai_frontend.config.settings import Settings
from openai_frontend.server.limits import ProtocolLimits
from openai_frontend.server.process import GatewayProcess, ShutdownTimeouts
from openai_frontend.triton import Options, Server

CONNECTIONS: dict[str, Any] = {
    "max_header_bytes": 2048, "max_connections": 4, "header_timeout_s": 5,
    "body_timeout_s": 6, "request_timeout_s": 7, "send_timeout_s": 8,
}  # fmt: skip


async def process_with(settings: Settings) -> GatewayProcess:
    app = create_app(settings, Server(Options(model_repositories=[])))
    process = create_process(app, settings, ListenAddress("http://localhost/v1"))
    process.config.load()
    app.state.registry.close()
    return process


async def test_process_uses_the_shutdown_timeouts() -> None:
    process = await process_with(Settings(drain_delay_s=2, graceful_shutdown_timeout_s=3))

    assert process._shutdown_timeouts == ShutdownTimeouts(2, 3)


async def test_process_uses_the_connection_limits() -> None:
    process = await process_with(Settings(keep_alive_timeout_s=9, **CONNECTIONS))

    protocol: Any = process.config.http_protocol_class
    assert process.config.timeout_keep_alive == 9
    assert protocol.limits == ProtocolLimits(**CONNECTIONS)
