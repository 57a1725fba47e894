"""What is logged of the start of vLLM's engines, in their processes."""

import logging
from collections.abc import Iterator

import pytest

from openai_frontend.logs import engine_logs


@pytest.fixture
def handler() -> Iterator[logging.Handler]:
    """As in a process that vLLM starts."""
    level = logging.getLogger("vllm").level
    made = engine_logs.vllm_handler()
    yield made
    made.close()
    logging.getLogger("vllm").setLevel(level)


def record(name: str, level: int, message: str) -> logging.LogRecord:
    return logging.LogRecord(name, level, __file__, 1, message, (), None)


def test_progress_of_a_start_is_logged_and_other_information_is_not(
    handler: logging.Handler,
) -> None:
    """Weights, compilation and KV cache have a line each, whatever the level of vLLM's log is."""
    for name, begins in engine_logs._PROGRESS.items():
        for begin in begins:
            assert handler.filter(record(name, logging.INFO, f"{begin} 5 s"))
        assert not handler.filter(record(name, logging.INFO, "Using a backend"))
        assert handler.filter(record(name, logging.ERROR, "Using a backend"))
    assert not handler.filter(record("vllm.other", logging.INFO, "Model loading took 5 s"))
