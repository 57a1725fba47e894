"""TensorRT-LLM's `whisper_bls`, with its tensors and habits; the words are tones (tests/audio.py).

Like NVIDIA's, it repeats the text from its start in each response, generates at most 50 tokens,
takes one request at a time, and reports a failure with its traceback.
"""

import json
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from tests import audio
from tests.api.backends.standins.tensors import FINAL, failure, strings

_MAX_TOKENS = 50
_DEFAULT = "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"


class TritonPythonModel:
    """Decoupled or not, as its config says."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.decoupled = config["model_transaction_policy"]["decoupled"]

    def execute(self, requests: list[Any]) -> list[Any] | None:
        answers = []
        for request in requests:
            try:
                texts = list(self.texts(request))
                responses = [pb_utils.InferenceResponse([_transcript(text)]) for text in texts]
            except Exception:  # noqa: BLE001  as NVIDIA's does
                responses = [failure(traceback.format_exc())]
            if self.decoupled:
                sender = request.get_response_sender()
                for response in responses:
                    sender.send(response)
                sender.send(flags=FINAL)
            else:
                answers.append(responses[-1])
        return None if self.decoupled else answers

    def texts(self, request: Any) -> Iterator[str]:
        """The text so far, after each token."""
        prefix = _input(request, "TEXT_PREFIX").tolist()[0][0].decode() or _DEFAULT
        wav = _input(request, "WAV")
        assert wav.shape[0] == 1, "Only support batch size 1"
        length = _input(request, "WAV_LENS").item()
        assert wav.shape[1] == length
        german = prefix == "<|startoftranscript|><|de|><|transcribe|><|notimestamps|>"
        words = audio.heard(wav[0], words=audio.GERMAN if german else audio.WORDS)
        if "?" in words:
            raise ValueError(f"a tone that is no word, in {wav.shape}")
        for count in range(1, min(len(words), _MAX_TOKENS) + 1):
            yield " ".join(words[:count])
        if not words:
            yield ""


def _input(request: Any, name: str) -> Any:
    """Without a check: like NVIDIA's, it fails if an optional input is missing."""
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


def _transcript(text: str) -> Any:
    tensor = strings("TRANSCRIPTS", [text])
    assert tensor.as_numpy().dtype == np.object_
    return tensor
