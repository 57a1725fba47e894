"""Loads engines by name for the in-process backend."""

import asyncio
import dataclasses
import importlib
import json
import logging
import multiprocessing
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from openai_frontend.engines import tensors
from openai_frontend.engines.engine import Engine, ModelFacts, ModelSpec
from openai_frontend.engines.handle import EngineHandle
from openai_frontend.logs.redaction import redact_exceptions
from openai_frontend.triton import error_codes

logger = logging.getLogger(__name__)
redact_exceptions(logger, redact=False)  # a load comes before any request

DEFAULT_ENGINE = (
    "vllm"  # so that a model of NVIDIA's vllm backend moves over by its `backend:` line alone
)
ENGINES = {
    "vllm": "openai_frontend.engines.vllm:VLLMEngine",
    "mock": "openai_frontend.engines.mock:MockEngine",
}


def load(
    name: str,
    version: int,
    folder: Path,
    config: dict[str, Any],
    loop: asyncio.AbstractEventLoop,
) -> tuple[EngineHandle, dict[str, Any]]:
    """Load a model's engine; return its host and its completed config. Called on Triton's load
    thread.

    Raises an exception whose message is one line with the file and the cause.
    """
    try:
        if config.get("max_batch_size", 0) > 0:
            raise ValueError("config.pbtxt: max_batch_size must be 0, the engine batches by itself")
        make = partial(_made, name, version, folder, _parameters(config), loop)
    except Exception as error:
        raise RuntimeError(_one_line(error)) from error
    engine, facts = make()
    host = EngineHandle(f"{name}-{version}", engine, dataclasses.asdict(facts), make)
    return host, tensors.completed_config(config)


def interrupt_loads() -> None:
    """End the processes that loading engines wait for, so that the loads fail at once: the
    server is stopping.
    """
    for child in multiprocessing.active_children():
        child.terminate()


def _made(
    name: str,
    version: int,
    folder: Path,
    parameters: Mapping[str, str],
    loop: asyncio.AbstractEventLoop,
) -> tuple[Engine, ModelFacts]:
    try:
        model = ModelSpec(
            name=name,
            version=version,
            folder=folder,
            parameters=parameters,
            arguments=_arguments(folder / str(version) / "model.json"),
        )
        engine = _engine_class(parameters.get("engine", DEFAULT_ENGINE))()
        return engine, _loaded(engine, model, loop)
    except Exception as error:
        if not _says_all(error):
            logger.exception("model %s, version %s: the engine did not load", name, version)
        raise RuntimeError(_one_line(error)) from error


def _loaded(engine: Engine, model: ModelSpec, loop: asyncio.AbstractEventLoop) -> ModelFacts:
    facts = engine.load(model)
    try:
        asyncio.run_coroutine_threadsafe(engine.warm_up(), loop).result()
    except BaseException:
        engine.unload()
        raise
    return facts


def _says_all(error: Exception) -> bool:
    """Whether the message needs no traceback: wrong arguments, or a model that Hugging Face's
    libraries cannot get, for which transformers raises OSError itself.
    """
    if isinstance(error, ValueError) or type(error) is OSError:
        return True
    return type(error).__module__.partition(".")[0] == "huggingface_hub"


def _one_line(error: Exception) -> str:
    described = error_codes.describe_exception(error)
    meant = isinstance(error, ValueError) and described.partition(": ")[2]
    return meant or described


def _parameters(config: Mapping[str, Any]) -> dict[str, str]:
    return {key: value["string_value"] for key, value in config.get("parameters", {}).items()}


def _arguments(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{path}: not a JSON object")
    return document


def check_engine(name: str) -> None:
    """Raises ValueError for a name that is neither known nor the address of a class."""
    if name not in ENGINES and ":" not in name:
        raise ValueError(
            f"config.pbtxt: parameters: engine: {name!r} is none of {', '.join(ENGINES)} "
            "and not of the form package.module:Class"
        )


def _engine_class(name: str) -> type[Engine]:
    check_engine(name)
    module_name, _, class_name = ENGINES.get(name, name).partition(":")
    found = getattr(importlib.import_module(module_name), class_name, None)
    if not (isinstance(found, type) and issubclass(found, Engine)):
        raise ValueError(f"config.pbtxt: parameters: engine: {name!r} is not an Engine class")
    return found
