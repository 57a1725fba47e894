"""The log of vLLM's processes, which load our logging configuration."""

import json
import os
import subprocess
import sys

from openai_frontend.logs.engine_logs import configure_vllm
from openai_frontend.runtime.load_phases import PHASES

# Configures logging as vLLM does in each of its processes
ENGINE = """
import json, logging.config, os
from types import SimpleNamespace
for known in ("vllm.v1.engine.core", "vllm.v1.worker.cpu_model_runner"):
    logging.getLogger(known)  # vLLM is imported already
logging.config.dictConfig(json.load(open(os.environ["_OPENAI_FRONTEND_ENGINE_LOG_CONFIG"])))
logger = logging.getLogger("vllm.v1.engine.core")
config = SimpleNamespace(model_config=SimpleNamespace(served_model_name="m"))
logger.info("Initializing a V1 LLM engine (v%s) with config: %s", "1", config)
logging.getLogger("vllm.v1.worker.cpu_model_runner").info("Starting to load model %s...", "/m")
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
    first, *others = logged(monkeypatch)[1:]

    assert first["message"] == "stopped at once"
    assert {line["process"] for line in (first, *others)} == {"MainProcess"}
    assert {line["logger"] for line in (first, *others)} == {"vllm.v1.engine.core"}


def test_progress_of_a_start_is_logged_and_reported(monkeypatch):
    """Whatever the level of vLLM's log is. Its configuration is not logged."""
    with PHASES.loading("m"):
        PHASES.report("m", "starting the engine")
        first, *_ = logged(monkeypatch)
        phases = PHASES.current()

    assert first["message"] == "Starting to load model /m..."
    assert phases == {"m": "reading weights"}


def test_texts_of_requests_are_omitted(monkeypatch):
    """The reason of a failed start is logged."""
    *_, fatal, start = logged(monkeypatch)

    assert "canary" not in json.dumps(fatal["exception"])
    assert start["exception"]["message"] == "no memory"


def test_operator_can_enable_texts(monkeypatch):
    """The setting applies to vLLM's processes too."""
    *_, fatal, _ = logged(monkeypatch, exception_texts=True)

    assert "the prompt was: canary" in fatal["exception"]["message"]
