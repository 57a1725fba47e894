"""Settings of the process itself that change while it runs."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from openai_frontend.app import create_app
from openai_frontend.cli.announcement import Place
from openai_frontend.cli.process import GatewayProcess, StopTimes
from openai_frontend.cli.serve import process_of, take_up
from openai_frontend.settings import Settings
from openai_frontend.triton import Options, Server

# Those that a request shows are in tests/routers/test_changed_settings.py
SHOWN = {"keep_alive_s", "max_header_bytes", "drain_delay_s", "shutdown_grace_s", "log_level"}


@pytest.fixture
def level() -> Iterator[None]:
    """The levels of loggers are the process', and so the suite's."""
    loggers = [logging.getLogger(name) for name in (None, "openai_frontend")]
    before = [logger.level for logger in loggers]
    yield
    for logger, was in zip(loggers, before, strict=True):
        logger.setLevel(was)


async def after(settings: Settings) -> GatewayProcess:
    """A process of default settings that has taken up others."""
    app = create_app(Settings(), Server(Options(model_repositories=[])))
    process = process_of(app, Settings(), Place("http://localhost/v1"))
    process.config.load()
    await take_up(app, process, settings)
    app.state.registry.close()
    return process


async def test_the_times_of_a_stop(level: None) -> None:
    """The next signal waits as long as the new settings say."""

    process = await after(Settings(drain_delay_s=2, shutdown_grace_s=3))

    assert process.stop_times == StopTimes(2, 3)


async def test_connections(level: None) -> None:
    """New ones idle for another time; a head's bound holds for all."""

    process = await after(Settings(keep_alive_s=7, max_header_bytes=2048))

    protocol: Any = process.config.http_protocol_class
    assert (process.config.timeout_keep_alive, protocol.max_header_bytes) == (7, 2048)


async def test_the_log(level: None) -> None:
    """Another level, at once."""

    await after(Settings(log_level="error"))

    assert not logging.getLogger("openai_frontend.app").isEnabledFor(logging.WARNING)
