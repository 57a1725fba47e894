"""Formats vLLM's log like ours, in the gateway's process and in EngineCore's.

vLLM configures its logger from a file in each of its processes: `vllm_log.json`, which calls
`handler` there. Our own environment variables contain its path and the format. Not vLLM's
variable: the Python backend's stubs would inherit it, and a vLLM there may not find this module.
"""

import logging
import multiprocessing
import os
from pathlib import Path

from openai_frontend.logs.formatters import LogFormat, make_formatter
from openai_frontend.logs.handler import NonBlockingHandler

_LEVEL = "VLLM_LOGGING_LEVEL"
# Read by engines/vllm/arguments.py
_CONFIG = "_OPENAI_FRONTEND_ENGINE_LOG_CONFIG"
# For the processes that vLLM starts; users set log_format and log_exception_texts
_FORM = "_OPENAI_FRONTEND_ENGINE_LOG_FORMAT"
_TEXTS = "_OPENAI_FRONTEND_ENGINE_LOG_EXCEPTION_TEXTS"
_STDERR = 2


def inherit(form: LogFormat, *, exception_texts: bool) -> None:
    """Sets the environment of the engine's processes."""
    os.environ[_CONFIG] = str(Path(__file__).with_suffix(".json"))
    os.environ[_FORM] = form
    os.environ[_TEXTS] = "1" if exception_texts else ""


def handler() -> logging.Handler:
    """The gateway's handler in its own process, an equivalent one in others."""
    logging.getLogger("vllm").setLevel(os.environ.get(_LEVEL, "ERROR").upper())
    for each in logging.getLogger().handlers:
        if isinstance(each, NonBlockingHandler):
            return each
    form: LogFormat = "json" if os.environ.get(_FORM) == "json" else "text"
    name = multiprocessing.current_process().name
    log_formatter = make_formatter(form, exception_texts=bool(os.environ.get(_TEXTS)), process=name)
    return NonBlockingHandler(_STDERR, log_formatter)
