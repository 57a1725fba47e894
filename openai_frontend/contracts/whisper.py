"""The tensors of TensorRT-LLM's `whisper_bls`, which transcribes speech."""

from array import array
from collections.abc import Callable, Mapping
from typing import Any

from openai_frontend.contracts import (
    DeclaredInputs,
    Outputs,
    TensorInput,
    check_supportable,
    declared_names,
)
from openai_frontend.errors import InvalidRequest, ModelUnavailable
from openai_frontend.generation import CompletionDelta, GenerationRequest
from openai_frontend.media.languages import NAMES
from openai_frontend.media.modalities import TranscriptionSupport

INPUTS = frozenset({"TEXT_PREFIX", "WAV", "WAV_LENS"})
OUTPUT = "TRANSCRIPTS"

# The model generates at most 50 tokens, about 15 s of speech, although its window has 30 s. Its
# tokenizer has the 100 languages of Whisper large-v3. It removes marks, and so times, from its
# text.
SUPPORT = TranscriptionSupport(
    sample_rate=16_000,
    window_seconds=10.0,
    languages=tuple(NAMES),
    timestamps=False,
    translation=True,
)


class WhisperContract:
    """Feeds one window of audio, and reads the text, which each response repeats from its start."""

    derives = frozenset({"deltas", "finish_reason", "prompt_tokens", "completion_tokens"})
    extra_args: frozenset[str] | None = frozenset()
    max_images: int | None = 0

    def __init__(self, config: Mapping[str, Any], *, decoupled: bool) -> None:
        self._inputs = DeclaredInputs(config)
        for name in sorted(INPUTS):
            if name not in self._inputs:
                raise ModelUnavailable(f"it has no input '{name}'")
        if OUTPUT not in declared_names(config, "output"):
            raise ModelUnavailable(f"it has no output '{OUTPUT}'")
        self._supported = {"prompt", "audio", *(["stream"] if decoupled else ())}

    def supports(self, field: str) -> bool:
        check_supportable(field)
        return field in self._supported

    def encode(self, request: GenerationRequest) -> dict[str, TensorInput]:
        """The length is sent too: the model reads it, although its config calls it optional."""
        if request.audio is None:
            raise InvalidRequest("This model needs audio.", param="file")
        samples = request.audio.samples.cast("B")
        count = len(samples) // array("f").itemsize
        return {
            "TEXT_PREFIX": self._inputs.tensor("TEXT_PREFIX", [request.prompt or ""]),
            "WAV": self._inputs.buffer("WAV", samples, count),
            "WAV_LENS": self._inputs.tensor("WAV_LENS", [count]),
        }

    def decoder(self, request: GenerationRequest) -> Callable[[Outputs], CompletionDelta]:
        """The text so far of each response; `DerivedOutputs` makes deltas of it."""
        return _decode

    def text_output(self, request: GenerationRequest) -> str | None:
        """None: a response has more than the new text."""
        return None


def _decode(outputs: Outputs) -> CompletionDelta:
    text = outputs.item(OUTPUT)
    return CompletionDelta("" if text is None else str(text, "utf-8", "replace"))
