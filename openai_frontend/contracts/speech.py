"""The tensors of models that speak: a text in, one waveform out. Other names are configured."""

from collections.abc import Mapping, Sequence
from typing import Any

from openai_frontend.contracts import DeclaredInputs, Outputs, TensorInput, is_writable
from openai_frontend.errors import InferenceFailed, ModelUnavailable
from openai_frontend.media.modalities import SpeechRequest, SpeechSupport

WAVEFORMS = ("waveform", "audio", "WAVEFORM")  # usual names of the output
FIELDS = ("voice", "speed", "instructions")  # of SpeechRequest, each an input of its own
_TEXTS = ("target_text", "text_input", "TEXT")  # usual names of the input
_NAMES = {"text_input", "waveform", *FIELDS}
_PARAMETER = "sample_rate"  # of config.pbtxt


class SpeechContract:
    """One text per request. Raises ModelUnavailable if the model's tensors do not fit."""

    def __init__(
        self, config: Mapping[str, Any], tensors: Mapping[str, str], *, decoupled: bool
    ) -> None:
        """`tensors`: our name -> the model's."""
        for ours in sorted(tensors.keys() - _NAMES):
            names = ", ".join(sorted(_NAMES))
            raise ModelUnavailable(f"`tensors` has an unknown name '{ours}'; use {names}")
        self._text = text_input(config, tensors)
        if self._text is None:
            raise ModelUnavailable("none of its inputs is a known text; name one as 'text_input'")
        self._waveform = waveform_output(config, tensors)
        if self._waveform is None:
            raise ModelUnavailable("none of its outputs is a waveform (TYPE_FP32)")
        self._inputs = DeclaredInputs(config, tensors)
        fields = frozenset(each for each in FIELDS if each in self._inputs)
        self.support = SpeechSupport(
            sample_rate=_sample_rate(config), fields=fields, streams=decoupled
        )
        self._check(tensors, fields)

    def encode(self, request: SpeechRequest) -> dict[str, TensorInput]:
        """The text, and each field that the request sets."""
        inputs = {self._inputs.name(str(self._text)): self._tensor(str(self._text), request.text)}
        for field in sorted(self.support.fields):
            value = getattr(request, field)
            if value is None and self._inputs.name(field) in self._inputs.required():
                value = 1.0 if field == "speed" else ""
            if value is not None:
                inputs[self._inputs.name(field)] = self._tensor(field, value)
        return inputs

    def decode(self, outputs: Outputs) -> memoryview:
        """The samples of one response, as little-endian float32; maybe none."""
        tensor = outputs.tensor(str(self._waveform))
        if tensor is None:
            return memoryview(b"")
        if tensor.dtype != "FP32":
            raise InferenceFailed("The model returned no waveform of 32-bit floats.")
        return memoryview(tensor).cast("B")

    def _tensor(self, name: str, value: str | float) -> TensorInput:
        return self._inputs.tensor(name, [value])

    def _check(self, tensors: Mapping[str, str], fields: frozenset[str]) -> None:
        for ours in sorted(tensors.keys() & set(FIELDS) - fields):
            raise ModelUnavailable(
                f"`tensors` names an input '{tensors[ours]}' that it does not have"
            )
        for field in sorted(fields):
            if not is_writable(self._inputs.datatype(field)):
                raise ModelUnavailable(f"its input '{self._inputs.name(field)}' has another type")
        filled = {self._inputs.name(each) for each in (str(self._text), *fields)}
        for name in sorted(self._inputs.required() - filled):
            raise ModelUnavailable(f"its input '{name}' is required, but no request field fills it")


def text_input(config: Mapping[str, Any], tensors: Mapping[str, str]) -> str | None:
    """The model's name of its text; None if it has no input that can be one."""
    names = [tensors["text_input"]] if "text_input" in tensors else _TEXTS
    texts = _names(config, "input", "TYPE_STRING")
    usual = next((name for name in names if name in texts), None)
    if usual is None and "text_input" not in tensors and len(texts) == 1:
        return texts[0]
    return usual


def waveform_output(config: Mapping[str, Any], tensors: Mapping[str, str]) -> str | None:
    """The model's name of its waveform; None without an FP32 output of a usual name."""
    names = [tensors["waveform"]] if "waveform" in tensors else WAVEFORMS
    numbers = _names(config, "output", "TYPE_FP32")
    return next((name for name in names if name in numbers), None)


def _names(config: Mapping[str, Any], side: str, data_type: str) -> Sequence[str]:
    return [each["name"] for each in config.get(side, ()) if each["data_type"] == data_type]


def _sample_rate(config: Mapping[str, Any]) -> int:
    """Hz, by the parameter of the config; nothing else says it."""
    value = config.get("parameters", {}).get(_PARAMETER, {}).get("string_value", "")
    if not (isinstance(value, str) and value.isdecimal() and 8_000 <= int(value) <= 384_000):
        raise ModelUnavailable(
            f"the sample rate of its waveform is unknown; set the parameter '{_PARAMETER}' of "
            "config.pbtxt to a number from 8000 to 384000"
        )
    return int(value)
