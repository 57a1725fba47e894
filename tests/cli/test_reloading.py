"""Settings that are read again: what is taken up, what is named, and what a mistake changes."""

import asyncio
import logging
from pathlib import Path

import pytest

from openai_frontend.cli.reloading import Reloading
from openai_frontend.setting_sources import load
from openai_frontend.setting_table import options
from openai_frontend.settings import Settings


class Server:
    """Has settings, and a file that they are read from."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "gateway.yaml"
        self.file.write_text("max_n: 4\n")
        self.taken_up: list[Settings] = []
        self.outcomes: list[str] = []
        self.reloading = Reloading(self.read(), self.read, self.take_up, count=self.outcomes.append)

    def read(self) -> Settings:
        return load(config=self.file, flags={"max_messages": "7"}, environment={})

    async def take_up(self, settings: Settings) -> None:
        self.taken_up.append(settings)

    async def reload(self, text: str) -> str | None:
        self.file.write_text(text)
        return await self.reloading.reload()


@pytest.fixture
def server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Server:
    caplog.set_level(logging.INFO)
    return Server(tmp_path)


async def test_a_changed_file(server: Server) -> None:
    """What may change is taken up; flags win as at the start."""

    outcome = await server.reload("max_n: 2\nmax_messages: 3\n")

    assert outcome == "settings read again; changed: max_n"
    [settings] = server.taken_up
    assert (settings.max_n, settings.max_messages) == (2, 7)
    assert server.reloading.settings is settings


async def test_what_waits_for_the_next_start(server: Server, caplog) -> None:
    """A port cannot change while it listens: it is named, and the rest is taken up."""

    await server.reload("max_n: 2\nport: 9999\n")

    [settings] = server.taken_up
    assert (settings.max_n, settings.port) == (2, 9000)
    assert "port was changed: that takes effect at the next start" in caplog.text


BROKEN = [
    ("max_n: [", "gateway.yaml: while parsing"),
    ("max_n: 0", "gateway.yaml: max_n: must be at least 1"),
    ("maxn: 1", "unknown setting 'maxn'; did you mean 'max_n'?"),
    (None, "gateway.yaml: No such file or directory"),
]


@pytest.mark.parametrize(("text", "reason"), BROKEN)
async def test_a_broken_file(server: Server, caplog, text: str | None, reason: str) -> None:
    """One line in the log says what is wrong with it; nothing changes."""
    before = server.reloading.settings
    if text is None:
        server.file.unlink()
        await server.reloading.reload()
    else:
        await server.reload(text)

    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage().startswith("the settings stay as they were: ")
    assert reason in record.getMessage()
    assert "\n" not in record.getMessage()
    assert (server.taken_up, server.reloading.settings) == ([], before)


async def test_the_file_mended(server: Server) -> None:
    """After a mistake the next reload is like any other."""
    await server.reload("max_n: [")

    assert await server.reload("max_n: 3") == "settings read again; changed: max_n"
    assert server.outcomes == ["refused", "taken_up"]


async def test_many_at_once(server: Server) -> None:
    """One that has begun may have read the file too early, so one more follows, and no others."""

    outcomes = await asyncio.gather(*[server.reloading.reload() for _ in range(10)])

    assert len(server.taken_up) == 2
    assert outcomes.count(None) == 8


FIXED = {"host", "port", "tls_certificate", "keys_file", "model_repository", "chat_template"}
LOOSE = {
    "max_concurrent_requests",
    "max_body_bytes",
    "stream_interval",
    "log_level",
    "cors_origins",
}


def test_which_reload() -> None:
    """Some of either kind, so that a mark that is lost is seen."""
    reloads = {option.name: option.reloads for option in options()}

    assert {name for name in FIXED | LOOSE if reloads[name]} == LOOSE
