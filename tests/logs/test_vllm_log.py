"""What vLLM's processes log: they read our file of its log as vLLM does."""

import json
import os
import subprocess
import sys

from openai_frontend.logs import vllm_log

# As vLLM configures itself in each of its processes, and then logs
ENGINE = """
import json, logging.config, os
logging.config.dictConfig(json.load(open(os.environ["_OPENAI_FRONTEND_ENGINE_LOG_CONFIG"])))
logger = logging.getLogger("vllm.v1.engine.core")
logger.info("not at this level")
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
    vllm_log.inherit("json", exception_texts=exception_texts)
    environment = dict(os.environ)
    os.environ.clear()
    os.environ.update(before)
    ran = subprocess.run(
        [sys.executable, "-c", ENGINE], capture_output=True, text=True, check=True, env=environment
    )
    return [json.loads(line) for line in ran.stderr.splitlines()]


def test_form_and_process(monkeypatch):
    """Their lines have the gateway's form, and the name of the process."""
    first, fatal, start = logged(monkeypatch)

    assert first["message"] == "stopped at once"
    assert {line["process"] for line in (first, fatal, start)} == {"MainProcess"}
    assert {line["logger"] for line in (first, fatal, start)} == {"vllm.v1.engine.core"}


def test_texts_of_exceptions(monkeypatch):
    """What an exception says of a request is left out; why the engine does not start is told."""
    _, fatal, start = logged(monkeypatch)

    assert "canary" not in json.dumps(fatal["exception"])
    assert start["exception"]["message"] == "no memory"


def test_operators_choice(monkeypatch):
    """The setting for the texts holds there too."""
    _, fatal, _ = logged(monkeypatch, exception_texts=True)

    assert "the prompt was: canary" in fatal["exception"]["message"]
