"""A user's own model: a question in, one reply out per request."""

import json
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from tests.api.backends.standins.llama import Llama
from tests.api.backends.standins.sequence import Sampling, Sequence
from tests.api.backends.standins.tensors import parameter, scalar, strings, text


class TritonPythonModel:
    """Supports a token limit and a temperature, and no other sampling parameter."""

    def initialize(self, args: dict[str, str]) -> None:
        weights = Path(parameter(json.loads(args["model_config"]), "weights"))
        self.llama = Llama(weights)
        self.tokenizer = Tokenizer.from_file(str(weights / "tokenizer.json"))

    def execute(self, requests: list[Any]) -> list[Any]:
        return [
            pb_utils.InferenceResponse([strings("REPLY", [self.reply(request)])])
            for request in requests
        ]

    def reply(self, request: Any) -> str:
        sampling = Sampling(
            max_tokens=scalar(request, "LIMIT", 64),
            temperature=scalar(request, "HEAT", 0.0),
            top_p=1.0,
            end_id=self.llama.config["eos_token_id"],
        )
        prompt = self.tokenizer.encode(text(request, "QUESTION") or "").ids
        sequence = Sequence(self.llama, prompt, sampling)
        while sequence.finish_reason is None:
            sequence.step()
        reply: str = self.tokenizer.decode(sequence.token_ids)
        return reply
