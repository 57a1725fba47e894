"""The logs of Triton's core and of vLLM, in the format of ours.

The core writes into a pipe, whose lines become our records. vLLM configures its logger from a file
in each of its processes: `engine_logs.json`, which calls `vllm_handler` there. Our own environment
variables contain its path and the format. Not vLLM's variable: the Python backend's stubs would
inherit it, and a vLLM there may not find this module.
"""

import contextlib
import fcntl
import logging
import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

from openai_frontend.logs.formatters import LogFormat, make_formatter
from openai_frontend.logs.handler import NonBlockingHandler
from openai_frontend.runtime.load_phases import PHASES, report_from_engine
from openai_frontend.runtime.triton_interface import LOG_LINE

logger = logging.getLogger("triton")

_LEVELS = {"V": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}

# The core blocks on a full pipe, so the pipe is as large as allowed
_PIPE_BYTES = 1024 * 1024


class TritonLogPipe:
    """The pipe and its reader thread. One per process, as the core has one log."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        with contextlib.suppress(OSError):  # the user's limit for pipes is reached
            fcntl.fcntl(self._write, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        # The core's own settings decide which lines are logged
        logger.setLevel(logging.DEBUG)
        threading.Thread(target=self._run, name="triton-log", daemon=True).start()

    @property
    def path(self) -> Path:
        """For the core's option `log_file`."""
        return Path(f"/proc/self/fd/{self._write}")

    def _run(self) -> None:
        with open(self._read, encoding="utf-8", errors="replace", newline="\n") as lines:
            level = logging.INFO
            for line in lines:
                level, text = _read(line.rstrip("\n"), level)
                if text:
                    logger.log(level, "%s", text)


def _read(line: str, level_before: int) -> tuple[int, str]:
    """Level and text; a line without a head continues the previous record."""
    match = LOG_LINE.fullmatch(line)
    if match is None:
        return level_before, line
    return logging.getLevelNamesMapping()[_LEVELS[match["a"] or match["b"]]], match["text"]


_VLLM_LEVEL = "VLLM_LOGGING_LEVEL"
# Read by engines/vllm/arguments.py
_CONFIG = "_OPENAI_FRONTEND_ENGINE_LOG_CONFIG"
# For the processes that vLLM starts; users set log_format and log_exception_texts
_FORM = "_OPENAI_FRONTEND_ENGINE_LOG_FORMAT"
_TEXTS = "_OPENAI_FRONTEND_ENGINE_LOG_EXCEPTION_TEXTS"
_STDERR = 2


def configure_vllm(form: LogFormat, *, exception_texts: bool) -> None:
    """Sets the environment of the engine's processes."""
    os.environ[_CONFIG] = str(Path(__file__).with_suffix(".json"))
    os.environ[_FORM] = form
    os.environ[_TEXTS] = "1" if exception_texts else ""
    PHASES.connect()


# How the messages of vLLM begin that say how far an engine's start is, by logger, and what the
# engine does next; empty if that is unchanged
_PROGRESS = {
    "vllm.v1.worker.gpu_model_runner": {
        "Starting to load model": "reading weights",
        "Model loading took": "profiling memory",
        "Graph capturing finished": "",
    },
    "vllm.v1.worker.cpu_model_runner": {
        "Starting to load model": "reading weights",
        "Warming up model": "compiling and warming up",
    },
    "vllm.model_executor.model_loader.default_loader": {"Loading weights took": "profiling memory"},
    "vllm.compilation.backends": {
        "%sCompiling a graph": "compiling",
        "%sDynamo bytecode transform time": "compiling",
    },
    "vllm.v1.core.kv_cache_utils": {
        "%s KV cache size": "allocating the KV cache and warming up",
        "GPU KV cache size": "allocating the KV cache and warming up",
        "CPU KV cache size": "allocating the KV cache and warming up",
    },
    "vllm.v1.engine.core": {"init engine": ""},
}
# Not logged. Its last argument is the configuration, with the name of the model
_ENGINE_BEGINS = "Initializing a V1 LLM engine"
_MODEL = "_OPENAI_FRONTEND_ENGINE_MODEL"  # also for the workers that the engine starts


class _ProgressOrWorse(logging.Filter):
    """Passes records of the configured level, and those about the progress of a start, which it
    reports to the gateway.
    """

    def __init__(self, level: int) -> None:
        super().__init__()
        self._level = level

    def filter(self, record: logging.LogRecord) -> bool:
        _report_phase(record)
        begins = tuple(_PROGRESS.get(record.name, ()))
        return record.levelno >= self._level or str(record.msg).startswith(begins)


def _report_phase(record: logging.LogRecord) -> None:
    message = str(record.msg)
    if message.startswith(_ENGINE_BEGINS) and isinstance(record.args, tuple):
        config: Any = record.args[-1]
        os.environ[_MODEL] = str(config.model_config.served_model_name)
    phases = _PROGRESS.get(record.name, {}).items()
    phase = next((phase for begin, phase in phases if message.startswith(begin)), "")
    if phase and (model := os.environ.get(_MODEL)) is not None:
        report_from_engine(model, phase)


def vllm_handler() -> logging.Handler:
    """The gateway's handler in its own process, an equivalent one in others."""
    logging.getLogger("vllm").setLevel(os.environ.get(_VLLM_LEVEL, "ERROR").upper())
    for each in logging.getLogger().handlers:
        if isinstance(each, NonBlockingHandler):
            return each
    form: LogFormat = "json" if os.environ.get(_FORM) == "json" else "text"
    name = multiprocessing.current_process().name
    log_formatter = make_formatter(form, exception_texts=bool(os.environ.get(_TEXTS)), process=name)
    handler = NonBlockingHandler(_STDERR, log_formatter)
    # Not the loggers of _PROGRESS: dictConfig, which calls this, then resets loggers below vllm's
    vllm_logger = logging.getLogger("vllm")
    handler.addFilter(_ProgressOrWorse(vllm_logger.level))
    vllm_logger.setLevel(min(vllm_logger.level, logging.INFO))
    return handler
