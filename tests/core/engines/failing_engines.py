"""Engines as users might write them, each with one thing that goes wrong."""

import asyncio
import multiprocessing
import threading
import time
from typing import Any

from openai_frontend.engines.engine import (
    DeltaSink,
    Engine,
    EngineError,
    ModelFacts,
    ModelSpec,
)
from openai_frontend.generation import CompletionDelta, GenerationRequest


def config(name: str) -> str:
    """A config.pbtxt for an engine of this module."""
    value = f"{__name__}:{name}"
    return (
        'backend: "inprocess"\n'
        f'parameters {{ key: "engine" value: {{ string_value: "{value}" }} }}\n'
    )


class Unprintable(Exception):
    """An exception that cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class _Loads(Engine):
    def load(self, model: ModelSpec) -> ModelFacts:
        return ModelFacts(max_model_len=100)


class FailsInLoad(_Loads):
    loads = 0

    def load(self, model: ModelSpec) -> ModelFacts:
        type(self).loads += 1
        raise OSError("the disk\nis gone")

    def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        raise AssertionError("a model that did not load gets no request")


class LacksItsModel(FailsInLoad):
    def load(self, model: ModelSpec) -> ModelFacts:
        from huggingface_hub.errors import LocalEntryNotFoundError

        raise LocalEntryNotFoundError("no snapshot")


class ExitsInLoad(FailsInLoad):
    def load(self, model: ModelSpec) -> ModelFacts:
        raise SystemExit("leaving")


class NamesNoContext(FailsInLoad):
    def load(self, model: ModelSpec) -> ModelFacts:
        return ModelFacts(max_model_len=None)


class DescribesImagesInADict(FailsInLoad):
    def load(self, model: ModelSpec) -> ModelFacts:
        images: Any = {"max_per_request": 2}
        return ModelFacts(max_model_len=100, images=images)


class UnprintableInLoad(FailsInLoad):
    def load(self, model: ModelSpec) -> ModelFacts:
        raise Unprintable


class WaitsInLoad(FailsInLoad):
    """For a process of its own, as vLLM does."""

    def load(self, model: ModelSpec) -> ModelFacts:
        process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
        process.start()
        process.join()
        raise EngineError("its process has ended")


class FailsInWarmUp(_Loads):
    unloaded = False

    async def warm_up(self) -> None:
        await asyncio.sleep(0)
        raise RuntimeError("cold")

    def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        raise AssertionError("a model that did not load gets no request")

    def unload(self) -> None:
        type(self).unloaded = True


class Answers(_Loads):
    """One token, from a coroutine."""

    async def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        sink.send(CompletionDelta(text="fine", token_ids=(1,), finish_reason="stop"))


class FailsInUnload(Answers):
    def unload(self) -> None:
        raise Unprintable


class RaisesAtOnce(_Loads):
    def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        raise KeyError("lost")


class RaisesUnprintably(_Loads):
    def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        raise Unprintable


class RaisesAfterTwo(_Loads):
    async def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        for text in ("one", "two"):
            sink.send(CompletionDelta(text=text, token_ids=(1,)))
        raise EngineError("three is too many", 4)


class EndsWithoutFinish(_Loads):
    async def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        sink.send(CompletionDelta(text="one", token_ids=(1,)))


class DropsTheSink(_Loads):
    def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        sink.send(CompletionDelta(text="one", token_ids=(1,)))


class CancelsItself(_Loads):
    async def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        raise asyncio.CancelledError


class SendsTooMuch(_Loads):
    async def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        sink.send(CompletionDelta(text="all", token_ids=(1,), finish_reason="stop"))
        sink.send(CompletionDelta(text="more", token_ids=(1,)))
        sink.fail(EngineError("and then some"))


class FailsInCancel(_Loads):
    requests = 0
    cancels = 0

    def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        self.sink = sink
        type(self).requests += 1

    def cancel(self, request_id: str) -> None:
        type(self).cancels += 1
        raise Unprintable


class NeverEnds(_Loads):
    """Two tokens at once, then it waits; it notes how its coroutines end."""

    running = 0
    cancelled = 0

    async def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        cls = type(self)
        cls.running += 1
        try:
            for text in ("one", "two"):
                sink.send(CompletionDelta(text=text, token_ids=(1,)))
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cls.cancelled += 1
            raise
        finally:
            cls.running -= 1


class LoadsWhenTold(Answers):
    """Its load waits for the test."""

    begun, may_end = threading.Event(), threading.Event()

    def load(self, model: ModelSpec) -> ModelFacts:
        model.report_phase("reading weights")
        self.begun.set()
        assert self.may_end.wait(120)
        return super().load(model)


class UnloadsWhenTold(Answers):
    """Its unload waits for the test; meanwhile it reports that it cannot serve, as vLLM's does."""

    begun, may_end = threading.Event(), threading.Event()

    def failure(self) -> str | None:
        return "the model is unloaded" if self.begun.is_set() else None

    def unload(self) -> None:
        self.begun.set()
        assert self.may_end.wait(120)


class SlowToLoad(Answers):
    """Holds Triton's load and unload threads for a while, without the GIL and with it."""

    def load(self, model: ModelSpec) -> ModelFacts:
        time.sleep(0.05)
        sum(range(200_000))
        return super().load(model)

    def unload(self) -> None:
        time.sleep(0.02)
        sum(range(200_000))
