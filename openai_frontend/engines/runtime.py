"""Loads engines by name for the in-process backend, and hands them Triton's requests."""

import asyncio
import dataclasses
import importlib
import itertools
import json
import logging
import multiprocessing
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from openai_frontend.engines import tensors
from openai_frontend.engines.engine import Engine, EngineError, EngineStats, ModelFacts, ModelFolder
from openai_frontend.engines.sink import ExecutionSink, fail
from openai_frontend.generation import Adapter, EmbeddingRequest, ScoreRequest
from openai_frontend.triton import failures
from openai_frontend.triton._core import Execution

logger = logging.getLogger(__name__)

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
) -> tuple["EngineHost", dict[str, Any]]:
    """Load a model's engine; return its host and its completed config. Called on Triton's load
    thread.

    Raises an exception whose message is one line with the file and the cause.
    """
    try:
        if config.get("max_batch_size", 0) > 0:
            raise ValueError("config.pbtxt: max_batch_size must be 0, the engine batches by itself")
        parameters = _parameters(config)
        model = ModelFolder(
            name=name,
            version=version,
            folder=folder,
            parameters=parameters,
            arguments=_arguments(folder / str(version) / "model.json"),
        )
        engine = _engine_class(parameters.get("engine", DEFAULT_ENGINE))()
        facts = _loaded(engine, model, loop)
    except Exception as error:
        if not isinstance(error, ValueError):  # a ValueError's message, which goes on, says all
            logger.exception("model %s, version %s: the engine did not load", name, version)
        raise RuntimeError(_one_line(error)) from error
    host = EngineHost(f"{name}-{version}", engine, dataclasses.asdict(facts))
    return host, tensors.completed_config(config)


def interrupt_loads() -> None:
    """End the processes that loading engines wait for, so that the loads fail at once: the
    server is stopping.
    """
    for child in multiprocessing.active_children():
        child.terminate()


def _loaded(engine: Engine, model: ModelFolder, loop: asyncio.AbstractEventLoop) -> ModelFacts:
    facts = engine.load(model)
    try:
        asyncio.run_coroutine_threadsafe(engine.warm_up(), loop).result()
    except BaseException:
        engine.unload()
        raise
    return facts


def _one_line(error: Exception) -> str:
    described = failures.described(error)
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


def _engine_class(name: str) -> type[Engine]:
    module_name, separator, class_name = ENGINES.get(name, name).partition(":")
    if not separator:
        raise ValueError(
            f"config.pbtxt: parameters: engine: {name!r} is none of {', '.join(ENGINES)} "
            "and not of the form package.module:Class"
        )
    found = getattr(importlib.import_module(module_name), class_name, None)
    if not (isinstance(found, type) and issubclass(found, Engine)):
        raise ValueError(f"config.pbtxt: parameters: engine: {name!r} is not an Engine class")
    return found


class EngineHost:
    """One loaded engine, as the in-process backend sees it."""

    def __init__(self, name: str, engine: Engine, facts: Mapping[str, Any]) -> None:
        self.facts = facts
        self._name = name
        self._engine = engine
        self._numbers = itertools.count(1)
        self._live: dict[Execution, str] = {}
        self._tasks: dict[Execution, asyncio.Task[None]] = {}
        self._adapters: Mapping[str, Adapter] = {}

    def set_adapters(self, adapters: Mapping[str, Adapter]) -> None:
        """Know the adapters that requests may name from now on."""
        self._adapters = adapters
        try:
            self._engine.set_adapters(adapters)
        except Exception:  # the edge to engines that users write: other models must go on
            logger.exception("%s: the engine does not take its adapters", self._name)

    def start(self, execution: Execution) -> None:
        """Begin a request: its tensors become a request of the engine's."""
        inputs = execution.inputs()
        # Triton's ids are the callers' own and may repeat.
        request_id = f"{self._name}-{next(self._numbers)}-{execution.request_id}"
        try:
            if "embedding_request" in inputs:
                embedding = tensors.read_embedding(inputs, request_id)
                self._run(execution, self._embed(embedding, execution))
                return
            if "score_request" in inputs:
                pair = tensors.read_score(inputs, request_id)
                self._run(execution, self._score(pair, execution))
                return
            request = tensors.read_generation(
                inputs, request_id, self._adapters, execution.parameters
            )
            sink = ExecutionSink(execution, request, inputs, self._live)
        except ValueError as error:
            execution.fail(failures.INVALID_ARG, str(error))
            return
        self._live[execution] = request_id
        try:
            started = self._engine.generate(request, sink)
        except Exception as error:  # noqa: BLE001  the edge to engines that users write
            sink.fail(error)
            return
        if started is not None:
            answering = self._run(execution, self._answer(started, sink))
            # A task that is cancelled before its first step never awaits what it was given.
            answering.add_done_callback(lambda _: started.close())

    def cancel(self, execution: Execution) -> None:
        """End a request whose caller has gone."""
        request_id = self._live.pop(execution, None)
        if (task := self._tasks.get(execution)) is not None:
            task.cancel()
        if request_id is not None:
            self._engine.cancel(request_id)
        execution.fail(failures.CANCELLED, "the request was cancelled")

    def unload(self) -> None:
        """Release the engine. Called on a thread of Triton's when no request is in flight."""
        self._engine.unload()

    def failure(self) -> str | None:
        """Say why the engine can serve no more; None while it can."""
        return self._engine.stats().failure

    def stats(self) -> EngineStats:
        """Say how the engine is doing."""
        return self._engine.stats()

    def _run(
        self, execution: Execution, coroutine: Coroutine[Any, Any, None]
    ) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[execution] = task
        task.add_done_callback(lambda _: self._tasks.pop(execution, None))
        return task

    async def _answer(self, answer: Coroutine[Any, Any, None], sink: ExecutionSink) -> None:
        try:
            await answer
        except Exception as error:  # noqa: BLE001  the edge to engines that users write
            sink.fail(error)
        if not sink.ended:
            sink.fail(EngineError("the engine ended the answer without a finish reason"))

    async def _embed(self, request: EmbeddingRequest, execution: Execution) -> None:
        try:
            result = await self._engine.embed(request)
        except Exception as error:  # noqa: BLE001  the edge to engines that users write
            fail(execution, error)
            return
        vector = result.embedding
        execution.send(
            [
                ("embedding", "FP32", (vector.nbytes // 4,), vector),
                tensors.count_output("num_input_tokens", result.prompt_tokens),
            ],
            final=True,
        )

    async def _score(self, request: ScoreRequest, execution: Execution) -> None:
        try:
            result = await self._engine.score(request)
        except Exception as error:  # noqa: BLE001  the edge to engines that users write
            fail(execution, error)
            return
        outputs = [
            tensors.score_output(result.score),
            tensors.count_output("num_input_tokens", result.prompt_tokens),
        ]
        execution.send(outputs, final=True)
