"""A model that speaks: a tone for each word (tests/audio.py), decoupled: one response each."""

import json
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from tests import audio
from tests.api.backends.standins.tensors import FINAL, failure, parameter, scalar, text


class TritonPythonModel:
    """A quieter voice is `whisper`; a speed of 2 leaves out every second sample."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.decoupled = config["model_transaction_policy"]["decoupled"]
        self.rate = int(parameter(config, "sample_rate"))
        self.batch = (1,) if config["max_batch_size"] > 0 else ()

    def execute(self, requests: list[Any]) -> list[Any] | None:
        if not self.decoupled:
            return [self.answer(request, self.words(request)) for request in requests]
        for request in requests:
            sender = request.get_response_sender()
            for word in self.words(request):
                if word not in audio.WORDS:
                    sender.send(failure("a word that it does not know"))
                    break
                sender.send(self.answer(request, [word]))
            sender.send(flags=FINAL)
        return None

    @staticmethod
    def words(request: Any) -> list[str]:
        return (text(request, "target_text") or "").split()

    def answer(self, request: Any, words: list[str]) -> Any:
        if not set(words) <= {*audio.WORDS, "..."}:
            return failure("a word that it does not know")
        samples = audio.spoken(words, self.rate)
        samples = samples[:: round(scalar(request, "pace", 1.0))]
        if text(request, "speaker") == "whisper":
            samples = samples * 0.25
        wave = np.ascontiguousarray(samples.reshape(*self.batch, -1).astype(np.float32))
        return pb_utils.InferenceResponse([pb_utils.Tensor("waveform", wave)])
