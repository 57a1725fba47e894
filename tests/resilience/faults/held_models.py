"""Models that hold their requests while a gate is closed, without the cyclic garbage collector."""

import asyncio
import gc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from openai_frontend.engines.engine import EngineError, ModelFacts, ModelSpec
from openai_frontend.pooling import EmbeddingResult, EmbedRequest, ScorePairRequest, ScoreResult
from openai_frontend.triton import error_codes
from tests import mock_models
from tests.api.backends.standins import configs
from tests.resilience.faults.gate import Gate
from tests.resilience.faults.gated_engine import GatedEngine

_CONFIG = mock_models.CONFIG.replace('"mock"', f'"{__name__}:HeldEngine"')
_AGAIN_S = 0.01
_KILLED = "the engine was killed"

HOLD = """
import pathlib
import threading
import time

import numpy
import triton_python_backend_utils as pb_utils


def hold():
    while pathlib.Path({hold!r}).exists():
        time.sleep(0.01)
"""
# Of noise, which no codec makes small: the text is the number of parts, of a second each.
SPEAKER = """

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.speak, args=(request,)).start()

    def speak(self, request):
        sender = request.get_response_sender()
        [text] = pb_utils.get_input_tensor_by_name(request, "target_text").as_numpy().flat
        noise = numpy.random.default_rng(1).normal(0, 0.3, (int(text), 24_000)).astype("f4")
        for part in noise:
            wave = pb_utils.Tensor("waveform", part)
            sender.send(pb_utils.InferenceResponse([wave]))
            hold()
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
ECHO = """

class TritonPythonModel:
    def execute(self, requests):
        hold()
        return [pb_utils.InferenceResponse([self.output(each)]) for each in requests]

    def output(self, request):
        return pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(request, "IN").as_numpy())
"""
ECHO_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_STRING dims: [-1] }
output { name: "OUT" data_type: TYPE_STRING dims: [-1] }
instance_group { count: 1 kind: KIND_CPU }
"""


def write_mock(repository: Path, name: str, gates: Mapping[str, Gate], **arguments: Any) -> None:
    """While the gate `answer` is closed, requests wait; while `life` is, the engine is dead."""
    paths = {name: str(gate.path) for name, gate in gates.items()}
    mock_models.write_with_tokenizer(repository, name, config=_CONFIG, gates=paths, **arguments)


def write_speaker(repository: Path, name: str, gate: Gate) -> None:
    """While the gate is closed, the model waits after its first part."""
    config = configs.pbtxt(configs.ONE_VOICE, decoupled=True, parameters={"sample_rate": "24000"})
    _write_python(repository / name, config, SPEAKER, gate)


def write_echo(repository: Path, name: str, gate: Gate) -> None:
    """While the gate is closed, the model waits."""
    _write_python(repository / name, ECHO_CONFIG, ECHO, gate)


def _write_python(folder: Path, config: str, model: str, gate: Gate) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    (folder / "1" / "model.py").write_text(HOLD.format(hold=str(gate.path)) + model)


class HeldEngine(GatedEngine):
    """Turns the collector off when it loads: nothing may depend on it."""

    def load(self, model: ModelSpec) -> ModelFacts:
        gc.disable()
        return super().load(model)

    async def embed(self, request: EmbedRequest) -> EmbeddingResult:
        await self._held()
        return await super().embed(request)

    async def score(self, request: ScorePairRequest) -> ScoreResult:
        await self._held()
        return await super().score(request)

    async def _held(self) -> None:
        while self._is_closed("answer"):
            if not self._lives():
                raise EngineError(_KILLED, error_codes.UNAVAILABLE)
            await asyncio.sleep(_AGAIN_S)

    def _once_open(
        self, gate: str, loop: asyncio.AbstractEventLoop, call: Callable[[], None]
    ) -> None:
        if self._lives():
            super()._once_open(gate, loop, call)

    def _lives(self) -> bool:
        if self._is_closed("life") and self._failure is None:
            self._die(_KILLED)
        return self._failure is None
