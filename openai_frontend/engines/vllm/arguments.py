"""Turns `model.json` and this platform's defaults into vLLM's engine arguments."""

import contextlib
import dataclasses
import logging
import os
import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from openai_frontend.engines.engine import ModelSpec
from openai_frontend.engines.kv_events import LOOPBACK_ENDPOINT
from openai_frontend.engines.vllm import capabilities, kv_transfer, versions
from openai_frontend.engines.vllm.processes import children as processes
from openai_frontend.engines.vllm.processes import environment, torch_builds
from openai_frontend.errors import did_you_mean

# Statistics cost time in every step; `"disable_log_stats": false` in model.json enables them.
ARGUMENTS: dict[str, Any] = {
    "disable_log_stats": True,
    "use_tqdm_on_load": False,
    "max_logprobs": 20,  # OpenAI's limit
    "scheduling_policy": "priority",  # equal priorities: first come, first served
}
# vLLM's own scheduler keeps the grammar backend of its first request for all requests.
ONLY_BACKEND = "xgrammar"
# Set in logs/engine_logs.py
LOG_CONFIG = "_OPENAI_FRONTEND_ENGINE_LOG_CONFIG"
SCHEDULER = "openai_frontend.engines.vllm.processes.scheduler.scheduler"
CPU_WORKER = "openai_frontend.engines.vllm.processes.worker.CPUWorker"

# Without a cache size, vLLM takes 92 % of the memory, and fails if that much is not free.
CPU_ARGUMENTS: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 128 * 1024 * 1024,
    "block_size": 32,
}

# KV events have no authentication, and contain the tokens and cache salts of all requests.
_KV_ENDPOINTS = ("endpoint", "replay_endpoint")
_LOCAL = re.compile(r"(ipc|inproc)://|tcp://(127\.[\d.]+|localhost|\[::(1|ffff:127\.[\d.]+)\]):")

_PATHS = ("model", "tokenizer", "hf_config_path")
# NVIDIA's backend accepts "enable_lora": "true"; in Python any non-empty string is true.
_SWITCHES: Mapping[str, bool] = {"true": True, "false": False, "True": True, "False": False}


def set_environment() -> None:
    """Set the environment variables that vLLM reads, unless the user has set them. Call it within
    `environment.restored`.

    Raises ValueError if vLLM is missing or unusable.
    """
    versions.installed()
    torch_builds.check()
    _set_defaults(environment.DEFAULTS)
    # Until vLLM has read the level above, it logs through the root logger.
    logging.getLogger("vllm").setLevel(logging.WARNING)
    if processes.on_cpu():
        _set_defaults(environment.CPU_DEFAULTS)


def check_names(names: Iterable[str]) -> None:
    """Raises ValueError for the first unknown engine argument, with the closest known name."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    known = [field.name for field in dataclasses.fields(AsyncEngineArgs)]
    for name in names:
        if name not in known:
            raise ValueError(f"vLLM has no engine argument {name!r}{did_you_mean(name, known)}")


def engine_arguments(model: ModelSpec) -> Any:
    """Return vLLM's AsyncEngineArgs. Raises ValueError, naming model.json and the argument."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform

    path = model.version_folder / "model.json"
    if not model.arguments:
        raise ValueError(f"{path}: missing or empty; it must contain vLLM's engine arguments")
    fields = {field.name: field for field in dataclasses.fields(AsyncEngineArgs)}
    try:
        check_names(model.arguments)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    on_cpu = current_platform.is_cpu()
    defaults = ARGUMENTS | (CPU_ARGUMENTS if on_cpu else {})
    given = {}
    for name, value in model.arguments.items():
        switch = isinstance(value, str) and isinstance(fields[name].default, bool)
        given[name] = _SWITCHES.get(value, value) if switch else _resolved(path, name, value)
    given["structured_outputs_config"] = _structured_outputs(given, path)
    if "kv_events_config" in given:
        config = _object(given, "kv_events_config", path)
        given["kv_events_config"] = {"endpoint": LOOPBACK_ENDPOINT, **config}
    if "kv_transfer_config" in given:
        config = _object(given, "kv_transfer_config", path)
        given["kv_transfer_config"] = kv_transfer.config(config, path, on_cpu=on_cpu)
    # By it the engine's processes report phases (logs/engine_logs.py)
    defaults |= {"served_model_name": model.name}
    try:
        defaults |= _own_classes(on_cpu=on_cpu, lora=bool(given.get("enable_lora")))
        return AsyncEngineArgs(**defaults | given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def _own_classes(*, on_cpu: bool, lora: bool) -> dict[str, Any]:
    """Arguments that replace parts of vLLM by the gateway's, as far as this vLLM allows."""
    vllm = versions.installed()
    found: dict[str, Any] = {}
    if vllm.has(capabilities.SCHEDULER):
        found["scheduler_cls"] = SCHEDULER
    if vllm.has(capabilities.LOGGING):
        found |= _log()
    if on_cpu and vllm.has(capabilities.CPU_WORKER):
        found["worker_cls"] = CPU_WORKER
    elif on_cpu:
        # A seeded request whose prompt takes several steps would crash vLLM's CPU worker
        # (worker.py).
        found["enable_chunked_prefill"] = False
        if lora and vllm.minor_version < versions.CORRECT_CPU_LORA:
            raise ValueError(
                f"enable_lora: vLLM {vllm.version} mixes up adapters on CPUs, and its fix needs"
                f" vLLM {versions.version_range()}"
            )
    return found


def tokenizer_folder(config: Any) -> str:
    """The folder of a model's tokenizer; for a hub name, in Hugging Face's cache."""
    from huggingface_hub import try_to_load_from_cache

    name = str(config.tokenizer)
    if Path(name).is_dir():
        return name
    for file in ("tokenizer.json", "tokenizer_config.json"):
        found = try_to_load_from_cache(name, file, revision=config.tokenizer_revision)
        if isinstance(found, str):
            return str(Path(found).parent)
    return name


def _log() -> dict[str, Any]:
    """The gateway's log format, unless the user has configured vLLM's logging."""
    file = os.environ.get(LOG_CONFIG)
    if file is None or "VLLM_LOGGING_CONFIG_PATH" in os.environ:
        return {}
    from vllm.config.logging import LoggingConfig

    return {"logging_config": LoggingConfig(pylogging_config_file=file)}


def _structured_outputs(given: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The engine's StructuredOutputsConfig: grammars apply from the first token on.

    With its own `reasoning_parser`, vLLM would apply a grammar only after the end of the reasoning.
    The gateway's grammars already include the reasoning up to its end marker, so they would wait
    for that marker a second time.
    """
    config = _object(given, "structured_outputs_config", path)
    own_engines = versions.installed().has(capabilities.GRAMMAR_ENGINES)
    if not own_engines and config.get("backend", "auto") == "auto":
        config = {**config, "backend": ONLY_BACKEND}
    return {**config, "enable_in_reasoning": True}


def _object(given: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    config = given.get(name) or {}
    if not isinstance(config, Mapping):
        raise ValueError(f"{path}: {name}: expected an object")
    return config


def open_endpoints(given: Mapping[str, Any]) -> list[str]:
    """A warning for each endpoint of KV events that other machines can reach."""
    config = given.get("kv_events_config")
    endpoints = config if isinstance(config, Mapping) else {}
    return [
        f"model.json: kv_events_config: other machines can reach {name} {endpoints[name]} without"
        " authentication, and its events contain prompts. Use 127.0.0.1, or let only the router"
        " reach it."
        for name in _KV_ENDPOINTS
        if endpoints.get(name) and not _LOCAL.match(str(endpoints[name]))
    ]


@contextlib.contextmanager
def terminal_signals_blocked() -> Iterator[None]:
    """Start processes that Ctrl-C and a closed terminal do not stop.

    SIGINT and SIGHUP reach every process in the terminal's group, but the engine's processes must
    live until their streams are drained. Processes that this thread starts inherit the mask.
    """
    resource_tracker.ensure_running()  # starting it later would unblock SIGINT again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _set_defaults(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def _resolved(path: Path, name: str, value: Any) -> Any:
    """Resolve "./" relative to model.json. Hub names and existing absolute paths stay unchanged."""
    if name not in _PATHS or not isinstance(value, str) or not value.startswith(("./", "/")):
        return value
    if value.startswith("/"):
        if not Path(value).exists():  # vLLM would treat it as a hub name
            raise ValueError(f"{path}: {name}: {value} does not exist")
        return value
    folder = Path(os.path.normpath(path.parent / value))
    if not folder.is_dir():
        raise ValueError(f"{path}: {name}: {folder} is not a folder")
    return str(folder)
