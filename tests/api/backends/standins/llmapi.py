"""TensorRT-LLM's LLM-API model: text in, the complete text so far out."""

from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils
import yaml
from tokenizers import Tokenizer

from tests.api.backends.standins import scheduler
from tests.api.backends.standins.llama import Llama
from tests.api.backends.standins.sequence import Sampling, Sequence
from tests.api.backends.standins.tensors import FINAL, failure, scalar, strings, texts

# Sampling parameters with the same names as ours
_NUMBERS = (
    "max_tokens", "temperature", "top_k", "top_p", "frequency_penalty", "presence_penalty", "seed",
)  # fmt: skip
DEFAULT_MAX_TOKENS = 32


class TritonPythonModel:
    """Has no batch dimension; `model.yaml` says whether it is decoupled."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        said = _model_yaml()["triton_config"]
        config.set_model_transaction_policy({"decoupled": bool(said["decoupled"])})
        config.set_max_batch_size(int(said["max_batch_size"]))
        return config

    def initialize(self, args: dict[str, str]) -> None:
        said = _model_yaml()
        self.decoupled = bool(said["triton_config"]["decoupled"])
        weights = Path(said["model"])
        self.llama = Llama(weights)
        self.tokenizer = Tokenizer.from_file(str(weights / "tokenizer.json"))

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            try:
                scheduler.start(self.answer(request))
            except ValueError as error:
                told = failure(f"Error generating request: {error}")
                request.get_response_sender().send(told, flags=FINAL)

    def answer(self, request: Any) -> "Answer":
        streams = bool(scalar(request, "streaming", False))
        if streams and not self.decoupled:
            raise ValueError("Streaming is only supported in decoupled mode.")
        prompt = self.tokenizer.encode(texts(request, "text_input")[0]).ids
        numbers = {
            name: value
            for name in _NUMBERS
            if (value := scalar(request, f"sampling_param_{name}")) is not None
        }
        sampling = Sampling(
            **{"max_tokens": DEFAULT_MAX_TOKENS, **numbers},
            end_id=self.llama.config["eos_token_id"],
        )
        return Answer(request, Sequence(self.llama, prompt, sampling), self.tokenizer, streams)


class Answer:
    """The answer to one request."""

    def __init__(
        self, request: Any, sequence: Sequence, tokenizer: Tokenizer, streams: bool
    ) -> None:
        self._request = request
        self._sender = request.get_response_sender()
        self._sequence = sequence
        self._tokenizer = tokenizer
        self._streams = streams
        self._stops = {
            stop: tokenizer.encode(stop, add_special_tokens=False).ids
            for stop in texts(request, "sampling_param_stop")
        }
        self._stopped_by: str | None = None
        excludes = scalar(request, "sampling_param_exclude_input_from_output", False)
        self._before = "" if excludes or streams else texts(request, "text_input")[0]

    def advance(self) -> bool:
        """One more token; the tokens of a stop text end the answer and are not part of it."""
        self._sequence.step()
        ids = self._sequence.token_ids
        for stop, tokens in self._stops.items():
            if ids[len(ids) - len(tokens) :] == tokens:
                self._stopped_by, self._sequence.finish_reason = stop, "stop"
                ids = ids[: len(ids) - len(tokens)]
                break
        ended = self._sequence.finish_reason is not None
        if self._streams or ended:
            text = self._before + self._tokenizer.decode(ids)
            outputs = [strings("text_output", [text]), *self._asked()]
            self._sender.send(pb_utils.InferenceResponse(outputs), flags=FINAL if ended else 0)
        return ended

    def is_cancelled(self) -> bool:
        cancelled: bool = self._request.is_cancelled()
        return cancelled

    def cancel(self) -> None:
        code = pb_utils.TritonError.CANCELLED
        self._sender.send(failure("Request cancelled by client", code), flags=FINAL)

    def _asked(self) -> list[Any]:
        """NVIDIA's model returns these as text, whatever type its config declares."""
        sequence = self._sequence
        values = {
            "finish_reason": sequence.finish_reason,
            "stop_reason": self._stopped_by,
            "cumulative_logprob": sum(sequence.log_probabilities),
        }
        return [
            strings(name, [str(value)])
            for name, value in values.items()
            if scalar(self._request, f"return_{name}", False)
        ]


def _model_yaml() -> dict[str, Any]:
    path = Path(pb_utils.get_model_dir()) / "model.yaml"
    said: dict[str, Any] = yaml.safe_load(path.read_text())
    return said
