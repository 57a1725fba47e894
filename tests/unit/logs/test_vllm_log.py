"""The log of vLLM's processes, which load our logging configuration."""

import json
import os
import subprocess
import sys

from openai_frontend.logs.engine_logs import configure_vllm

# Configures logging as vLLM does in each of its processes
ENGINE = """
import json, logging.config, os
logging.config.dictConfig(json.load(open(os.environ["_OPENAI_FRONTEND_ENGINE_LOG_CONFIG"])))
logger = logging.getLogger("vllm.v1.engine.core")
logger.info("below the level")
logger.error("stopped at %s", "once")
try:
    raise RuntimeError("the prompt was: canary")
except RuntimeError:
    logger.exception("EngineCore encountered a fatal error.")
try:
    raise RuntimeError("no memory")
except RuntimeError:
    logger.exception("EngineCore failed to start.")
logging.shutdown()
"""


def logged(monkeypatch, *, exception_texts=False):
    monkeypatch.delenv("VLLM_LOGGING_LEVEL", raising=False)
    before = dict(os.environ)
    configure_vllm("json", exception_texts=exception_texts)
    environment = dict(os.environ)
    os.environ.clear()
    os.environ.update(before)
    ran = subprocess.run(
        [sys.executable, "-c", ENGINE], capture_output=True, text=True, check=True, env=environment
    )
    return [json.loads(line) for line in ran.stderr.splitlines()]


def test_lines_have_our_format_and_the_process(monkeypatch):
    """Each line is JSON and names the process."""
    first, fatal, start = logged(monkeypatch)

    assert first["message"] == "stopped at once"
    assert {line["process"] for line in (first, fatal, start)} == {"MainProcess"}
    assert {line["logger"] for line in (first, fatal, start)} == {"vllm.v1.engine.core"}


def test_texts_of_requests_are_omitted(monkeypatch):
    """The reason of a failed start is logged."""
    _, fatal, start = logged(monkeypatch)

    assert "canary" not in json.dumps(fatal["exception"])
    assert start["exception"]["message"] == "no memory"


def test_operator_can_enable_texts(monkeypatch):
    """The setting applies to vLLM's processes too."""
    _, fatal, _ = logged(monkeypatch, exception_texts=True)

    assert "the prompt was: canary" in fatal["exception"]["message"]
