"""A gateway with full logging: level debug, JSON, an access log, and a span for each request."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests import mock_models
from tests.api.tracing import telling_engine
from tests.fast.auth import key_files
from tests.fast.prompting import tiny_tokenizer
from tests.gateway_process import GatewayProcess
from tests.medium.tracing.collector import Collector

KEY = "sk-canary0key0canary0key0canary0key"
ANSWER = "canaryanswer"


@dataclass
class World:
    process: GatewayProcess
    collector: Collector
    client: httpx.Client

    def lines(self) -> list[dict[str, Any]]:
        """The JSON lines of the log."""
        logged = [each for each in self.process.output().splitlines() if each.startswith("{")]
        return [json.loads(each) for each in logged]

    def lines_of(self, request_id: str, timeout_s: float = 60) -> list[dict[str, Any]]:
        """The lines of a finished request; the last one is the access log's."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            found = [line for line in self.lines() if line.get("request_id") == request_id]
            if found and found[-1]["logger"] == "openai_frontend.access_log":
                return found
            time.sleep(0.05)
        raise AssertionError(f"{request_id} is not over in:\n{self.process.output()}")


@pytest.fixture(scope="package")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """`demo` generates text, `telling` raises, `broken` does not load, `breaks` fails midway,
    `hears` transcribes.
    """
    folder = tmp_path_factory.mktemp("seen")
    repository = folder / "models"
    mock_models.write_with_tokenizer(repository, "demo", tokens=[f" {ANSWER}"], dimensions=4)
    telling = mock_models.write(repository, "telling", config=telling_engine.CONFIG)
    tiny_tokenizer.write(telling / "tokenizer")
    mock_models.write(repository, "broken", fail_at_load="as it was told to")
    mock_models.write_with_tokenizer(
        repository, "breaks", tokens=[f" {ANSWER}"], fail_after_tokens=2, tasks=["generate"]
    )
    mock_models.write_with_tokenizer(repository, "hears", audio_window_s=4.0, answer_tokens=1)
    keys = key_files.write(folder / "keys.yaml", key_files.key("tester", secret=KEY))
    options = ("--log-format=json", "--log-level=debug", "--access-log", f"--keys-file={keys}")
    lenient = "--no-strict-readiness"  # of the broken model
    core = "--triton-option=log-verbose=1"
    patch = pytest.MonkeyPatch()
    patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with (
        Collector() as collector,
        GatewayProcess(
            repository, folder / "log", *options, lenient, core, f"--otlp-endpoint={collector.url}"
        ) as process,
        httpx.Client(base_url=process.url, headers=key_files.bearer(KEY), timeout=120) as client,
    ):
        patch.undo()
        process.wait_until_ready()
        yield World(process, collector, client)
