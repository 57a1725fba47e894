"""vLLM's own log, in the gateway's process and in its EngineCore's, as lines of ours.

vLLM configures its logger from a file in each of its processes: `vllm_log.json`, which calls
`handler` there. Environment variables of ours name it and say the form. Not vLLM's own variable:
the Python backend's stubs would inherit it, and a vLLM there may not find this module.
"""

import logging
import multiprocessing
import os
from pathlib import Path

from openai_frontend.logs.formatters import LogFormat, make_formatter
from openai_frontend.logs.handler import NonBlockingHandler

_LEVEL = "VLLM_LOGGING_LEVEL"
# Read where the engine's arguments are made (engines/vllm/arguments.py)
_CONFIG = "_OPENAI_FRONTEND_ENGINE_LOG_CONFIG"
# For the processes that vLLM starts; what users set are the settings of the same names
_FORM = "_OPENAI_FRONTEND_ENGINE_LOG_FORMAT"
_TEXTS = "_OPENAI_FRONTEND_ENGINE_LOG_EXCEPTION_TEXTS"
_STDERR = 2


def inherit(form: LogFormat, *, exception_texts: bool) -> None:
    """Set the environment for the engine's processes."""
    os.environ[_CONFIG] = str(Path(__file__).with_suffix(".json"))
    os.environ[_FORM] = form
    os.environ[_TEXTS] = "1" if exception_texts else ""


def handler() -> logging.Handler:
    """The gateway's own handler in its process; in another one its like."""
    logging.getLogger("vllm").setLevel(os.environ.get(_LEVEL, "ERROR").upper())
    for each in logging.getLogger().handlers:
        if isinstance(each, NonBlockingHandler):
            return each
    form: LogFormat = "json" if os.environ.get(_FORM) == "json" else "text"
    name = multiprocessing.current_process().name
    made = make_formatter(form, exception_texts=bool(os.environ.get(_TEXTS)), process=name)
    return NonBlockingHandler(_STDERR, made)
