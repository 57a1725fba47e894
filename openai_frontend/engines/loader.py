"""Loads engines by name for the in-process backend."""

import asyncio
import importlib
import json
import logging
import multiprocessing
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from openai_frontend.engines import tensors
from openai_frontend.engines.engine import Engine, ModelFacts, ModelSpec
from openai_frontend.engines.handle import EngineHandle
from openai_frontend.errors import caught, describe_exception
from openai_frontend.logs.redaction import redact_exceptions
from openai_frontend.runtime.load_phases import PHASES

logger = logging.getLogger(__name__)
redact_exceptions(logger, redact=False)  # a load sees no request

# vllm is the default so that models of NVIDIA's vllm backend need only a new `backend:` line.
DEFAULT_ENGINE = "vllm"
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
    """Load a model's engine; return its handle and its completed config.

    Called on Triton's load thread. Raises an exception whose one-line message names the file and
    the cause.
    """
    if config.get("max_batch_size", 0) > 0:
        raise RuntimeError(
            "config.pbtxt: max_batch_size must be 0: the engine does its own batching"
        )
    make = partial(_load_engine, name, version, folder, _parameters(config), loop)
    engine, facts = make()
    host = EngineHandle(f"{name}-{version}", engine, facts, make)
    return host, tensors.completed_config(config)


def describe(
    name: str,
    version: int,
    folder: Path,
    config: Mapping[str, Any],
    arguments: Mapping[str, Any] | None = None,
) -> ModelFacts | None:
    """The facts that the engine's class reads from a model's files, without loading the model; None
    if only a load shows them. Raises ValueError if the files are invalid.

    `arguments`: the content of model.json; None reads the file.
    """
    parameters = _parameters(config)
    engine = _engine_class(parameters.get("engine", DEFAULT_ENGINE))
    spec = _spec(name, version, folder, parameters)
    return engine.describe(spec if arguments is None else replace(spec, arguments=arguments))


def interrupt_loads() -> None:
    """Terminate the processes of loading engines, so that their loads fail at once at shutdown."""
    for child in multiprocessing.active_children():
        child.terminate()


def _load_engine(
    name: str,
    version: int,
    folder: Path,
    parameters: Mapping[str, str],
    loop: asyncio.AbstractEventLoop,
) -> tuple[Engine, ModelFacts]:
    def refuse(error: Exception) -> NoReturn:
        if not _is_self_explanatory(error):
            logger.error(
                "model %s, version %s: loading the engine failed", name, version, exc_info=error
            )
        raise RuntimeError(_one_line(error)) from error

    def report(phase: str) -> None:
        logger.info("model %s: %s", name, phase)
        PHASES.report(name, phase)

    with PHASES.loading(name), caught(refuse):  # users write engines
        model = replace(_spec(name, version, folder, parameters), report_phase=report)
        engine = _engine_class(parameters.get("engine", DEFAULT_ENGINE))()
        facts = _start(engine, model, loop)
    return engine, facts


def _spec(name: str, version: int, folder: Path, parameters: Mapping[str, str]) -> ModelSpec:
    return ModelSpec(
        name=name,
        version=version,
        folder=folder,
        parameters=parameters,
        arguments=_arguments(folder / str(version) / "model.json"),
    )


def _start(engine: Engine, model: ModelSpec, loop: asyncio.AbstractEventLoop) -> ModelFacts:
    facts = engine.load(model)
    with ExitStack() as on_failure:
        on_failure.callback(engine.unload)
        if facts.max_model_len is None:
            raise ValueError("ModelFacts: max_model_len is missing")
        PHASES.report(model.name, "warming up")
        asyncio.run_coroutine_threadsafe(engine.warm_up(), loop).result()
        on_failure.pop_all()
    return replace(facts)  # a new one for each load, by which a model is known again


def _is_self_explanatory(error: Exception) -> bool:
    """Whether the message needs no traceback: invalid arguments, or a model that Hugging Face's
    libraries cannot get, for which transformers raises OSError itself.
    """
    if isinstance(error, ValueError) or type(error) is OSError:
        return True
    return type(error).__module__.partition(".")[0] == "huggingface_hub"


def _one_line(error: Exception) -> str:
    described = describe_exception(error)
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
    """Raises ValueError unless `name` is a known engine or has the form `module:Class`."""
    if name not in ENGINES and ":" not in name:
        raise ValueError(
            f"config.pbtxt: parameters: engine: {name!r}: expected one of {', '.join(ENGINES)} "
            "or package.module:Class"
        )


def _engine_class(name: str) -> type[Engine]:
    check_engine(name)
    module_name, _, class_name = ENGINES.get(name, name).partition(":")
    engine = getattr(importlib.import_module(module_name), class_name, None)
    if not (isinstance(engine, type) and issubclass(engine, Engine)):
        raise ValueError(f"config.pbtxt: parameters: engine: {name!r} is not an Engine class")
    return engine
